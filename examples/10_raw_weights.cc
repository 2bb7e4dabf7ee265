// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Raw weights: int8 weights with scales per channel, as an engine has them in memory, spread over
// two ranks by a placement that says where each expert lives.  The ranks are threads.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "moebius/moe_layer.h"

namespace {

using namespace moebius;

constexpr int64_t kExperts = 6, kTopk = 2, kHidden = 64, kIntermediate = 32, kTokens = 12;

// Codes [E, rows, cols] and scales [E, rows].
Tensor codes(int64_t rows, int64_t cols, int64_t seed) {
  const Tensor tensor = Tensor::empty({kExperts, rows, cols}, DType::kI8);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.data<int8_t>()[i] = static_cast<int8_t>((i * 37 + i / 11 * seed) % 255 - 127);
  }
  return tensor;
}
Tensor scales(int64_t rows) {
  const Tensor tensor = Tensor::empty({kExperts, rows}, DType::kF32);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.data<float>()[i] = 1e-3f * static_cast<float>(1 + i % 5);
  }
  return tensor;
}

// The slices of those experts that live on a rank, in the order of their ids.
Tensor share(const Tensor& all, const ExpertPlacement& placement, int rank) {
  const int64_t num_local = placement.num_local(rank);
  const Tensor own = Tensor::empty(
      all.num_dims() == 3 ? Shape{num_local, all.dim(1), all.dim(2)} : Shape{num_local, all.dim(1)},
      all.dtype());
  for (int64_t e = 0; e < kExperts; ++e) {
    if (placement.rank_of(e) == rank) {
      std::memcpy(own[placement.local_index(e)].raw(), all[e].raw(),
                  static_cast<size_t>(all[e].nbytes()));
    }
  }
  return own;
}

MoeLayerWeights weights_of(const ExpertPlacement& placement, int rank) {
  const auto own = [&](const Tensor& all) { return share(all, placement, rank); };
  MoeLayerWeights weights;
  weights.config = {.num_experts = kExperts,
                    .experts_per_token = kTopk,
                    .hidden = kHidden,
                    .intermediate = kIntermediate,
                    .in_dtype = DType::kF32};
  weights.placement = placement;
  weights.experts.w1 = own(codes(2 * kIntermediate, kHidden, 3));
  weights.experts.w2 = own(codes(kHidden, kIntermediate, 7));
  QuantTensors tensors;
  tensors.w1_scale = own(scales(2 * kIntermediate));
  tensors.w2_scale = own(scales(kHidden));
  weights.experts.quant = QuantConfig::int8_w8a16(tensors);
  return weights;
}

// Hidden states with their experts, for tokens [begin, end) of all.
MoeLayerInput tokens(int64_t begin, int64_t end) {
  MoeLayerInput input;
  input.hidden = Tensor::empty({end - begin, kHidden}, DType::kF32);
  input.topk_ids = Tensor::empty({end - begin, kTopk}, DType::kI32);
  input.topk_weights = Tensor::empty({end - begin, kTopk}, DType::kF32);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < kHidden; ++h) {
      set_float(input.hidden[t - begin], h, std::sin(static_cast<float>(t * kHidden + h)));
    }
    for (int64_t k = 0; k < kTopk; ++k) {
      input.topk_ids[t - begin].data<int32_t>()[k] = static_cast<int32_t>((t + 3 * k) % kExperts);
      set_float(input.topk_weights[t - begin], k, 0.5f);
    }
  }
  return input;
}

Tensor run(MoeLayer& layer, const MoeLayerInput& input, const Stream& stream) {
  const Tensor output = Tensor::empty(input.hidden.shape(), DType::kF32);
  WorkspacePool workspaces;
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  layer.forward(input, output, context);
  return output;
}

}  // namespace

int main() {
  MoeLayer alone(weights_of(ExpertPlacement::linear(kExperts, 1), 0), MoeLayerOptions(), Stream());
  const Tensor expected = run(alone, tokens(0, kTokens), Stream());

  // Rank 1 has experts 0, 3 and 4.
  const auto placement = ExpertPlacement::from_ranks({1, 0, 0, 1, 1, 0}, 2);
  double largest = 0;
  std::mutex mutex;
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const int rank = group.rank();
    MoeLayerWeights weights = weights_of(placement, rank);
    weights.config.parallel =
        ParallelConfig::make(/*tp_size=*/1, 0, /*dp_size=*/2, rank,
                             /*enable_expert_parallel=*/true, All2AllBackend::kHighThroughput);
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(std::move(weights), MoeLayerOptions(), stream, &group);
    const int64_t begin = rank * kTokens / 2;
    const Tensor output = run(layer, tokens(begin, begin + kTokens / 2), stream);
    const std::lock_guard lock(mutex);
    for (int64_t i = 0; i < output.numel(); ++i) {
      const float difference = get_float(output, i) - get_float(expected, begin * kHidden + i);
      largest = std::max(largest, static_cast<double>(std::abs(difference)));
    }
    std::printf("rank %d: %d experts\n", rank, static_cast<int>(placement.num_local(rank)));
  });
  std::printf("largest difference to one rank: %g\n", largest);
  return largest < 1e-4 ? 0 : 1;
}
