// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/layer/cuda_rank_layer.h"

#include <gtest/gtest.h>

#include "tests/layer/tensors.h"

namespace moebius::testing {

namespace {

constexpr int64_t kMaxTokens = 8;  // per rank and call of a batched backend
constexpr double kRowTolerance = 1e-2;

}  // namespace

MoeLayerWeights weights_of(const ParallelConfig& parallel) {
  const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
  const auto share = [&](const Shape& shape, uint32_t seed) {
    return random_tensor(shape, DType::kBF16, seed, 0.2f).slice(own.begin, own.end);
  };
  MoeLayerWeights w;
  w.config.parallel = parallel;
  w.config.num_experts = kExperts;
  w.config.num_local_experts = own.size();
  w.config.experts_per_token = kTopk;
  w.config.hidden = kHidden;
  w.config.intermediate = kIntermediate;
  w.config.max_num_tokens = kMaxTokens;
  w.router_config.num_experts = kExperts;
  w.router_config.topk = kTopk;
  w.router_config.renormalize = true;
  w.router.gate = random_tensor({kExperts, kHidden}, DType::kBF16, 1, 0.3f);
  w.experts.w1 = share({kExperts, 2 * kIntermediate, kHidden}, 2);
  w.experts.w2 = share({kExperts, kHidden, kIntermediate}, 3);
  w.shared.w1 = random_tensor({1, 2 * kIntermediate, kHidden}, DType::kBF16, 4, 0.2f);
  w.shared.w2 = random_tensor({1, kHidden, kIntermediate}, DType::kBF16, 5, 0.2f);
  w.shared_intermediate = kIntermediate;
  w.shared_gate = random_tensor({1, kHidden}, DType::kBF16, 6, 0.1f);
  return w;
}

Expected on_one_cpu(const Tensor& hidden) {
  MoeLayerOptions options;
  options.experts = "cpu_portable";
  const Stream stream = Stream::cpu();
  MoeLayer layer(weights_of({}), options, stream);
  WorkspacePool workspaces;
  const Tensor output = Tensor::empty(hidden.shape(), DType::kBF16);
  layer.forward(hidden, output, {stream, &workspaces});
  return {output, layer.expert_load()};
}

void expect_rows(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.shape(), expected.shape());
  for (int64_t t = 0; t < expected.dim(0); ++t) {
    ASSERT_LE(relative_error(actual[t], expected[t]), kRowTolerance) << "row " << t;
  }
}

}  // namespace moebius::testing
