// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LogitSums::kTensorCores must be close to f64, have the same bits in every call, batch and CUDA
// graph, and be refused when it is not possible.
#include <algorithm>
#include <cmath>
#include <string>

#include "moebius/graph.h"
#include "moebius/router.h"
#include "tests/conformance/router_runs.h"
#include "tests/error_text.h"
#include "tests/gpu_test.h"
#include "tests/router/random_inputs.h"

namespace moebius::testing {
namespace {

RouterConfig tensor_sums(int64_t num_experts, Device device) {
  RouterConfig config = {.num_experts = num_experts};
  config.logit_sums = LogitSums::kTensorCores;
  config.device = device;
  return config;
}

class TensorSums : public GpuTest {
 protected:
  static Router make(const Tensor& gate, const Tensor& bias = {}) {
    return {tensor_sums(gate.dim(0), Device::cuda(0)), {.gate = gate, .bias = bias}};
  }
};

TEST_F(TensorSums, AreCloseToDoublePrecision) {
  // Sizes around tiles (64 and 128), steps of depth (64) and pieces of depth (8).
  for (const LogitsProblem& p : {LogitsProblem{1, 1, 8},
                                 {3, 7, 40},
                                 {64, 64, 64},
                                 {65, 63, 520},
                                 {127, 129, 576},
                                 {7, 256, 7168},
                                 {2049, 130, 200}}) {
    SCOPED_TRACE("T " + std::to_string(p.num_tokens) + " E " + std::to_string(p.num_experts) +
                 " H " + std::to_string(p.hidden));
    const Tensor hidden = random_tensor({p.num_tokens, p.hidden}, DType::kBF16, 1);
    const Tensor gate = random_tensor({p.num_experts, p.hidden}, DType::kBF16, 2, 0.1f);
    const Tensor out = run_logits(make(gate), hidden, 1);
    // The bound is a unit in the last place, 2^-23, per step of 16 in a piece and per piece.
    const auto steps = static_cast<double>(((p.hidden + 63) / 64 + 7) / 8 * 4 + 8);
    EXPECT_LE(worst_error(out, hidden, gate), steps * std::ldexp(1.0, -23));
    for (int64_t e = 0; e < p.num_experts; ++e) {  // the guard row
      ASSERT_EQ(out.data<float>()[p.num_tokens * p.num_experts + e], -77.0f);
    }
  }
}

TEST_F(TensorSums, AddTheBiasLast) {
  const Tensor hidden = Tensor::zeros({2, 16}, DType::kBF16);
  const Tensor gate = random_tensor({9, 16}, DType::kBF16, 2);
  const Tensor bias = random_tensor({9}, DType::kF32, 3);
  const Tensor out = run_logits(make(gate, bias), hidden, 1);
  for (int64_t i = 0; i < 18; ++i) {
    EXPECT_EQ(out.data<float>()[i], bias.data<float>()[i % 9]);
  }
}

TEST_F(TensorSums, OfATokenAreTheSameInEveryBatchAndCall) {
  constexpr int64_t kHidden = 1032, kExperts = 256, kTokens = 2100;
  const Tensor gate = random_tensor({kExperts, kHidden}, DType::kBF16, 2, 0.1f);
  const Tensor hidden = random_tensor({kTokens, kHidden}, DType::kBF16, 1);
  const Router router = make(gate);
  const Tensor all = run_logits(router, hidden, 1);
  EXPECT_SAME_BITS(run_logits(router, hidden, 1), all);
  for (const int64_t begin : {0, 1, 77, 2000}) {
    for (const int64_t count : {1, 64, 100}) {
      const Tensor part = run_logits(router, hidden.slice(begin, begin + count), 1);
      EXPECT_SAME_BITS(part.slice(0, count), all.slice(begin, begin + count));
    }
  }
}

TEST_F(TensorSums, LeadToTheSelectionOfTheirLogits) {
  RouterConfig config = tensor_sums(64, Device::cuda(0));
  config.topk = 6;
  const RouterWeights weights = {.gate = random_tensor({64, 256}, DType::kBF16, 2, 0.1f)};
  const Router router(config, weights);
  const Tensor logits = run_logits(router, random_tensor({200, 256}, DType::kBF16, 1), 1);
  config.device = {};
  config.logit_sums = LogitSums::kStated;
  const Selection expected = run_select(make_forced("ref", config, weights), logits, 1);
  const Selection actual = run_select(router, logits, 1);
  EXPECT_SAME_BITS(actual.all_ids, expected.all_ids);
  EXPECT_SAME_BITS(actual.all_weights, expected.all_weights);
}

TEST_F(TensorSums, AreCapturedByAGraph) {
  const Tensor gate = random_tensor({96, 512}, DType::kBF16, 2, 0.1f);
  const Router router = make(gate);
  const Place place(DeviceType::kCuda);
  const Tensor hidden = place.take(random_tensor({130, 512}, DType::kBF16, 1));
  const Tensor out = Tensor::zeros({130, 96}, DType::kF32, place.device());
  const auto work = [&] { router.logits(hidden, out, place.stream); };
  work();  // loads the kernel
  place.stream.synchronize();
  const Graph graph(place.stream, work);
  const Tensor other = random_tensor({130, 512}, DType::kBF16, 5);
  copy(other, hidden, place.stream);
  place.stream.synchronize();
  graph.launch();
  const Tensor replayed = place.bring(out);
  EXPECT_SAME_BITS(replayed, run_logits(router, other, 1).slice(0, 130));
}

TEST_F(TensorSums, OfOtherOperandsAreRefused) {
  const auto refusal = [](const Tensor& gate) {
    return message_of<Unsupported>(
        [&] { Router(tensor_sums(8, Device::cuda(0)), {.gate = gate}); });
  };
  expect_mentions(refusal(Tensor::zeros({8, 16}, DType::kF32)),
                  "the gate is f32, and tensor cores sum logits of bf16");
  expect_mentions(refusal(Tensor::zeros({8, 20}, DType::kBF16)),
                  "hidden size 20 is not a multiple of 8");
  const Router router = make(Tensor::zeros({8, 16}, DType::kBF16));
  expect_mentions(message_of([&] {
                    run_logits(router, Tensor::zeros({2, 16}, DType::kF32), 1);
                  }),
                  "f32, expected bf16");
}

}  // namespace
}  // namespace moebius::testing
