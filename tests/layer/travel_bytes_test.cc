// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts what a prepare sends for each quantization, by Group::traffic.
#include <gtest/gtest.h>

#include "experts/quantized_rows.h"
#include "moebius/all2all.h"
#include "moebius/group.h"
#include "moebius/workspace.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 64;
constexpr int64_t kHidden = 512;
constexpr int64_t kTopk = 2;
constexpr int64_t kExperts = 4;

struct Sent {
  const char* name;
  QuantConfig quant;
  int64_t row_bytes;  // codes and scales
};

std::vector<Sent> schemes() {
  QuantTensors nvfp4;
  nvfp4.a1_gscale = Tensor::zeros({1}, DType::kF32);
  nvfp4.a1_gscale.data<float>()[0] = 100.0f;
  QuantTensors fp8;
  fp8.a1_scale = fp8.a2_scale = Tensor::zeros({1}, DType::kF32);
  fp8.a1_scale.data<float>()[0] = fp8.a2_scale.data<float>()[0] = 0.01f;
  const int64_t h = kHidden;
  return {{"none", {}, 2 * h},
          {"fp8 blocks", QuantConfig::fp8_w8a8({}, false, false, GroupShape{128, 128}), h + h / 32},
          {"fp8 with a static scale", QuantConfig::fp8_w8a8(fp8), h},
          {"fp8 tokens", QuantConfig::fp8_w8a8({}, true, true), h + 4},
          {"int8 tokens", QuantConfig::int8_w8a8({}, true), h + 4},
          {"mxfp8", QuantConfig::ocp_mx(QuantFormat::kMxfp8, {}), h + h / 32},
          {"mxfp6_e3m2", QuantConfig::ocp_mx(QuantFormat::kMxfp6E3M2, {}), h * 3 / 4 + h / 32},
          {"mxfp6_e2m3", QuantConfig::ocp_mx(QuantFormat::kMxfp6E2M3, {}), h * 3 / 4 + h / 32},
          {"mxfp4", QuantConfig::ocp_mx(QuantFormat::kMxfp4, {}), h / 2 + h / 32},
          {"nvfp4", QuantConfig::nvfp4(nvfp4), h / 2 + h / 16},
          {"nvfp4, global scales of rows", QuantConfig::nvfp4({}), h / 2 + h / 16 + 4}};
}

std::unique_ptr<PrepareFinalize> make(int backend, Group& group) {
  const ExpertPlacement placement = ExpertPlacement::linear(kExperts, group.size());
  switch (backend) {
    case 0:
      return make_allgather_reducescatter(group);
    case 1:
      return make_high_throughput(std::make_shared<HighThroughput>(group, placement));
    default:
      return make_low_latency(std::make_shared<LowLatency>(
          group, placement,
          LowLatencyOptions{.max_tokens = kTokens, .hidden = kHidden, .topk = kTopk}));
  }
}

// The bytes that this rank sends in one prepare, in which each of its tokens goes to both ranks.
int64_t bytes_of_prepare(Group& group, PrepareFinalize& backend, const QuantConfig& quant) {
  WorkspacePool pool;
  CallContext context;
  context.workspaces = &pool;
  PrepareInput input;
  input.hidden = random_tensor({kTokens, kHidden}, DType::kBF16, 1);
  input.topk_ids = Tensor::empty({kTokens, kTopk}, DType::kI32);
  for (int64_t t = 0; t < kTokens; ++t) {
    input.topk_ids.data<int32_t>()[t * kTopk] = static_cast<int32_t>(t % 2);
    input.topk_ids.data<int32_t>()[t * kTopk + 1] = static_cast<int32_t>(2 + t % 2);
  }
  input.topk_weights = random_tensor({kTokens, kTopk}, DType::kF32, 2);
  input.num_experts = kExperts;
  input.quant = &quant;
  // As experts of these formats say.
  input.defer_input_quant = quant.a1.format && !takes_codes(*quant.a1.format);
  input.may_quantize_transfers = input.defer_input_quant;
  Traffic before;
  for (int call = 0; call < 2; ++call) {  // the first call makes banks
    group.barrier("before a prepare");
    before = group.traffic();
    const PrepareResult rows = backend.prepare(input, context);
    const DType sent = quant.a1.format ? storage_dtype(*quant.a1.format) : DType::kBF16;
    EXPECT_EQ(rows.x.dtype(), sent);
    backend.forget(0);
  }
  const Traffic after = group.traffic();
  return after.intra_node_bytes - before.intra_node_bytes + after.inter_node_bytes -
         before.inter_node_bytes;
}

TEST(TravelBytes, AreThoseOfCodesAndScalesInEveryBackend) {
  for (const int ranks_per_node : {0, 1}) {
    run_thread_ranks({.num_ranks = 2, .ranks_per_node = ranks_per_node}, [&](Group& group) {
      for (const int backend : {0, 1, 2}) {
        int64_t others = 0;  // ids, weights, counts: what travels beside rows
        for (const Sent& sent : schemes()) {
          const auto made = make(backend, group);
          SCOPED_TRACE(std::string(made->name()) + ", " + sent.name);
          const int64_t bytes = bytes_of_prepare(group, *made, sent.quant);
          if (!sent.quant.a1.format) {
            others = bytes - kTokens * sent.row_bytes;
            EXPECT_LT(others, kTokens * 64);
          }
          // Low latency pads codes and scales to 16 bytes, and blocks of rows have a padding each.
          EXPECT_NEAR(static_cast<double>(bytes - others),
                      static_cast<double>(kTokens * sent.row_bytes), kTokens * 24);
        }
      }
    });
  }
}

}  // namespace
}  // namespace moebius::testing
