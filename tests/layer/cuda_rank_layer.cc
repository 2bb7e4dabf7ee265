// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/layer/cuda_rank_layer.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/layer/small_layer.h"

namespace moebius::testing {

namespace {

constexpr double kRowTolerance = 1e-2;

}  // namespace

MoeLayerWeights weights_of(const ParallelConfig& parallel) {
  return share_of(
      random_layer(
          {.num_experts = kExperts,
           .experts_per_token = kTopk,
           .hidden = kHidden,
           .intermediate = kIntermediate,
           .max_num_tokens = 8},
          {.shared_intermediate = kIntermediate, .experts_scale = 0.2f, .shared_gate_scale = 0.1f}),
      parallel);
}

MoeLayerWeights other_weights_of(const ParallelConfig& parallel) {
  MoeLayerWeights weights = weights_of(parallel);
  int64_t seed = 90 + 10 * parallel.ep_rank;
  for (Tensor* tensor : {&weights.experts.w1, &weights.experts.w2, &weights.shared.w1,
                         &weights.shared.w2, &weights.shared_gate}) {
    *tensor = random_tensor(tensor->shape(), tensor->dtype(), seed++, 0.2f);
  }
  const Tensor& gate = weights.router.gate;  // the same on every rank
  weights.router.gate = random_tensor(gate.shape(), gate.dtype(), 89, 0.3f);
  return weights;
}

Expected on_one_cpu(const Tensor& hidden) {
  const Stream stream = Stream::cpu();
  MoeLayer layer(weights_of({}), SmallLayer::options(), stream);
  const Tensor output = forward(layer, hidden, DType::kBF16, stream);
  return {output, layer.expert_load()};
}

void expect_rows(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.shape(), expected.shape());
  for (int64_t t = 0; t < expected.dim(0); ++t) {
    ASSERT_LE(relative_error(actual[t], expected[t]), kRowTolerance) << "row " << t;
  }
}

RankLayer::RankLayer(const LayerKind& kind,
                     const ParallelConfig& parallel,
                     const Place& at,
                     Group* group,
                     std::shared_ptr<Transports> transports)
    : place(at) {
  MoeLayerOptions options;
  options.format = kind.format;
  options.monolithic = kind.is_monolithic;
  options.kernel = kind.kernel;
  options.kernel.min_microbatch_tokens = 0;
  options.comm_sms = kind.comm_sms;
  options.capacity = kind.capacity;
  options.low_latency_sum = kind.low_latency_sum;
  options.transports = std::move(transports);
  layer = std::make_unique<MoeLayer>(weights_of(parallel), options, place.stream, group);
}

}  // namespace moebius::testing
