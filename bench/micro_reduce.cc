// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Times the weighted sums of tokens' rows, and a copy for comparison (Google Benchmark).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>

#include "moebius/weight_and_reduce.h"

namespace moebius {
namespace {

constexpr int64_t kTokens = 2048;
constexpr int64_t kHidden = 2048;

void contiguous(benchmark::State& state, DType dtype, int64_t topk) {
  const Stream stream = Stream::cpu(1);
  WeightAndReduceInput input;
  input.expert_output = Tensor::zeros({kTokens, topk, kHidden}, dtype);
  std::memset(input.expert_output.raw(), 0x3c, static_cast<size_t>(input.expert_output.nbytes()));
  input.topk_ids = Tensor::zeros({kTokens, topk}, DType::kI32);
  input.topk_weights = Tensor::zeros({kTokens, topk}, DType::kF32);
  std::fill_n(input.topk_weights.data<float>(), input.topk_weights.numel(), 0.125f);
  const Tensor output = Tensor::zeros({kTokens, kHidden}, dtype);
  const auto strategy = make_weight_and_reduce(WeightAndReduceKind::kContiguous);
  for (auto _ : state) {
    strategy->apply(input, output, stream);
  }
  state.SetBytesProcessed(state.iterations() * (input.expert_output.nbytes() + output.nbytes()));
}

// Counts the bytes read and the bytes written.
void copy(benchmark::State& state) {
  const Tensor from = Tensor::zeros({int64_t{64} << 20}, DType::kU8);
  const Tensor to = Tensor::zeros(from.shape(), DType::kU8);
  std::memset(from.raw(), 1, static_cast<size_t>(from.nbytes()));
  for (auto _ : state) {
    std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.nbytes()));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * from.nbytes());
}

BENCHMARK(copy);
BENCHMARK_CAPTURE(contiguous, bf16_top8, DType::kBF16, 8);
BENCHMARK_CAPTURE(contiguous, bf16_top4, DType::kBF16, 4);
BENCHMARK_CAPTURE(contiguous, f16_top8, DType::kF16, 8);
BENCHMARK_CAPTURE(contiguous, f32_top8, DType::kF32, 8);

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
