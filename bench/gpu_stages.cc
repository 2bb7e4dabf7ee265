// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Times stages on one GPU and compares each with a copy of as many bytes on the device.  A result
// is compared with the CPU's before it is timed, so a wrong kernel gets no number.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "moebius/permute.h"
#include "moebius/quantize.h"
#include "moebius/router.h"
#include "moebius/weight_and_reduce.h"
#include "problems/gpu_cold.h"
#include "problems/routers.h"
#include "problems/statistics.h"

namespace moebius {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int64_t kHidden = 7168;
constexpr int64_t kExperts = 256;
constexpr int64_t kTopk = 8;

Tensor random_tensor(const Shape& shape, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  const Tensor tensor = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    // The sum of two uniform numbers has a triangular distribution around 0.
    const auto sum = static_cast<float>(random() >> 9) + static_cast<float>(random() >> 9);
    set_float(tensor, i, sum * 0x1p-23f - 1.0f);
  }
  return tensor;
}

Tensor random_ids(int64_t num_tokens) {
  std::mt19937 random(7);
  const Tensor ids = Tensor::empty({num_tokens, kTopk}, DType::kI32);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ids.data<int32_t>()[i] = static_cast<int32_t>(random() % kExperts);
  }
  return ids;
}

class Bench {
 public:
  const Stream& stream() const { return gpu_.stream(); }
  Tensor take(const Tensor& tensor) const { return gpu_.take(tensor); }
  Tensor empty(const Shape& shape, DType dtype) const { return gpu_.empty(shape, dtype); }

  // The median time of the work in microseconds.
  double time(const std::function<void()>& work) const {
    constexpr int kWarmUp = 5;
    std::vector<double> times;
    for (int i = 0; i < kWarmUp + 21; ++i) {
      const double us = gpu_.seconds(work) * 1e6;
      if (i >= kWarmUp) {
        times.push_back(us);
      }
    }
    return app::median(times);
  }

  // The time in microseconds of a device copy that reads and writes `bytes` bytes in total.
  double copy_time(int64_t bytes) const {
    const Tensor from = Tensor::zeros({bytes / 2}, DType::kU8, gpu_.device());
    const Tensor to = empty({bytes / 2}, DType::kU8);
    return time([&] { copy(from, to, stream()); });
  }

  void report(const std::string& name,
              int64_t bytes,
              const std::function<void()>& work,
              const std::vector<std::pair<Tensor, Tensor>>& results) const {
    work();
    for (const auto& [actual, expected] : results) {
      const Tensor back = to_device(actual, Device::cpu(), stream());
      if (std::memcmp(back.raw(), expected.raw(), static_cast<size_t>(back.nbytes())) != 0) {
        fmt::print("{:<42} WRONG: differs from the CPU\n", name);
        return;
      }
    }
    const double us = time(work);
    const double copy_us = copy_time(bytes);
    fmt::print(
        "{:<42} {:8.1f} us {:8.0f} GB/s   copy {:8.1f} us   {:5.1f} % of it   floor {:6.1f} us\n",
        name, us, static_cast<double>(bytes) / us * 1e-3, copy_us, copy_us / us * 100.0,
        static_cast<double>(bytes) / 4.2e6);
    std::fflush(stdout);
  }

 private:
  bench::ColdGpu gpu_;
};

void bench_quantize(const Bench& bench,
                    const std::string& name,
                    const QuantizeSpec& spec,
                    const Tensor& x,
                    const Tensor& x_there) {
  const Quantized expected = quantize(x, spec);
  Quantized q = allocate_quantized(spec, x.dim(0), x.dim(1), bench.stream().device());
  const int64_t bytes = x.nbytes() + q.values.nbytes() + q.scale.nbytes();
  bench.report(name, bytes, [&] { quantize(x_there, spec, q, bench.stream()); },
               {{q.values, expected.values}, {q.scale, expected.scale}});
}

// Times the sums of rows on one of eight ranks before they go back.  A token has one to eight of
// its experts on the rank, 1.5 on average.  `width` is that of a row or of a part of its columns.
void bench_sums_of_a_rank(const Bench& bench, int64_t width) {
  constexpr int64_t kLocalExperts = kExperts / 8;
  constexpr int64_t kReceived = 21696;
  std::mt19937 random(8);
  const Tensor ids = Tensor::empty({kReceived, kTopk}, DType::kI32);
  int32_t num_rows = 0;
  for (int64_t token = 0; token < kReceived; ++token) {
    const int32_t before = num_rows;
    while (num_rows == before) {
      for (int64_t k = 0; k < kTopk; ++k) {
        const auto id = static_cast<int32_t>(random() % kExperts);
        ids.data<int32_t>()[token * kTopk + k] = id < kLocalExperts ? id : -1;
        num_rows += id < kLocalExperts ? 1 : 0;
      }
    }
  }
  const Tensor weights = random_tensor(ids.shape(), DType::kF32, 9);
  const Tensor rows = random_tensor({num_rows, width}, DType::kBF16, 10);
  const Tensor sums = Tensor::empty({kReceived, width}, DType::kBF16);
  const Permutation order = allocate_permutation(kReceived, kTopk, kLocalExperts);
  make_permutation(ids, {}, order, Stream{});
  reduce_permuted_rows(rows, order.row_of_slot, weights, sums, Stream{});
  const Tensor rows_there = bench.take(rows);
  const Tensor places_there = bench.take(order.row_of_slot);
  const Tensor weights_there = bench.take(weights);
  const Tensor sums_there = bench.empty(sums.shape(), sums.dtype());
  bench.report(
      fmt::format("reduce_permuted_rows of 1.5, {} columns", width), rows.nbytes() + sums.nbytes(),
      [&] {
        reduce_permuted_rows(rows_there, places_there, weights_there, sums_there, bench.stream());
      },
      {{sums_there, sums}});
}

void bench_all(const Bench& bench) {
  const Tensor x = random_tensor({kTokens, kHidden}, DType::kBF16, 1);
  const Tensor x_there = bench.take(x);
  const std::pair<const char*, QuantizeSpec> cases[] = {
      {"quantize fp8 1x128", {QuantFormat::kFp8, {1, 128}}},
      {"quantize fp8 per token", {QuantFormat::kFp8, GroupShape::per_token()}},
      {"quantize fp8 per tensor (x read twice)", {QuantFormat::kFp8, GroupShape::per_tensor()}},
      {"quantize int8 per token", {QuantFormat::kInt8, GroupShape::per_token()}},
      {"quantize mxfp4", {QuantFormat::kMxfp4, {1, 32}}},
      {"quantize mxfp6_e3m2", {QuantFormat::kMxfp6E3M2, {1, 32}}},
      {"quantize mxfp8", {QuantFormat::kMxfp8, {1, 32}}},
      {"quantize nvfp4 (x read twice)", {QuantFormat::kNvfp4, {1, 16}}},
  };
  for (const auto& [name, spec] : cases) {
    bench_quantize(bench, name, spec, x, x_there);
  }
  {
    const QuantizeSpec block{QuantFormat::kFp8, {1, 128}};
    const Quantized q = quantize(x, block);
    const Tensor expected = Tensor::empty(x.shape(), x.dtype());
    dequantize(q, block, expected, Stream{});
    const Quantized there = {bench.take(q.values), bench.take(q.scale), {}, {}};
    const Tensor out = bench.empty(x.shape(), x.dtype());
    bench.report("dequantize fp8 1x128", x.nbytes() + q.values.nbytes() + q.scale.nbytes(),
                 [&] { dequantize(there, block, out, bench.stream()); }, {{out, expected}});
  }

  const Tensor ids = random_ids(kTokens);
  const Tensor ids_there = bench.take(ids);
  const Tensor weights = random_tensor({kTokens, kTopk}, DType::kF32, 2);
  const Permutation order = allocate_permutation(kTokens, kTopk, kExperts);
  make_permutation(ids, {}, order, Stream{});
  const Permutation there = allocate_permutation(kTokens, kTopk, kExperts, bench.stream().device());
  bench.report("make_permutation 4096 x 8, 256 experts", 4 * ids.nbytes(),
               [&] { make_permutation(ids_there, {}, there, bench.stream()); },
               {{there.expert_offsets, order.expert_offsets},
                {there.slot_of_row, order.slot_of_row},
                {there.row_of_slot, order.row_of_slot}});
  const Tensor rows = Tensor::empty({kTokens * kTopk, kHidden}, DType::kBF16);
  permute_rows(x, order, rows, Stream{});
  const Tensor rows_there = bench.empty(rows.shape(), rows.dtype());
  bench.report("permute_rows to 8 experts each", x.nbytes() + rows.nbytes(),
               [&] { permute_rows(x_there, there, rows_there, bench.stream()); },
               {{rows_there, rows}});
  const Tensor sums = Tensor::empty(x.shape(), x.dtype());
  reduce_permuted_rows(rows, order.row_of_slot, weights, sums, Stream{});
  const Tensor weights_there = bench.take(weights);
  const Tensor sums_there = bench.empty(x.shape(), x.dtype());
  bench.report("reduce_permuted_rows of 8", rows.nbytes() + x.nbytes(),
               [&] {
                 reduce_permuted_rows(rows_there, there.row_of_slot, weights_there, sums_there,
                                      bench.stream());
               },
               {{sums_there, sums}});
  bench_sums_of_a_rank(bench, kHidden);
  bench_sums_of_a_rank(bench, kHidden / 4);
  const Tensor in_slots = rows.view({kTokens, kTopk, kHidden});
  const Tensor in_slots_there = rows_there.view({kTokens, kTopk, kHidden});
  const auto contiguous = make_weight_and_reduce(WeightAndReduceKind::kContiguous);
  contiguous->apply({in_slots, weights, ids}, sums, Stream{});
  bench.report(
      "weight_and_reduce of 8", rows.nbytes() + x.nbytes(),
      [&] {
        contiguous->apply({in_slots_there, weights_there, ids_there}, sums_there, bench.stream());
      },
      {{sums_there, sums}});
  const Tensor counts = Tensor::empty({kExperts}, DType::kI32);
  const Tensor counts_there = bench.empty({kExperts}, DType::kI32);
  count_expert_tokens(ids, {}, counts, Stream{});
  bench.report("count_expert_tokens 4096 x 8", ids.nbytes(),
               [&] { count_expert_tokens(ids_there, {}, counts_there, bench.stream()); },
               {{counts_there, counts}});

  RouterConfig config = deepseek_v3_router(kExperts, kTopk);
  RouterWeights router_weights;
  router_weights.gate = random_tensor({kExperts, kHidden}, DType::kBF16, 4);
  router_weights.correction_bias = random_tensor({kExperts}, DType::kF32, 5);
  const Router on_cpu(config, router_weights);
  config.device = bench.stream().device();
  const Router router(config, router_weights);
  config.logit_sums = LogitSums::kTensorCores;
  const Router on_tensor_cores(config, router_weights);
  for (const int64_t num_tokens : {int64_t{1}, int64_t{16}, int64_t{128}, kTokens}) {
    const Tensor hidden = x.slice(0, num_tokens);
    const Tensor logits = Tensor::empty({num_tokens, kExperts}, DType::kF32);
    on_cpu.logits(hidden, logits, Stream{});
    const Tensor logits_there = bench.empty(logits.shape(), DType::kF32);
    const Tensor hidden_there = x_there.slice(0, num_tokens);
    bench.report(fmt::format("router logits {} x 7168 x 256", num_tokens),
                 hidden.nbytes() + router_weights.gate.nbytes() + logits.nbytes(),
                 [&] { router.logits(hidden_there, logits_there, bench.stream()); },
                 {{logits_there, logits}});
    // Tensor cores give other bits than the CPU, so later calls are compared with the first one.
    // tests/router compares it with f64.
    on_tensor_cores.logits(hidden_there, logits_there, bench.stream());
    const Tensor first = to_device(logits_there, Device::cpu(), bench.stream());
    bench.report("the same by tensor cores",
                 hidden.nbytes() + router_weights.gate.nbytes() + logits.nbytes(),
                 [&] { on_tensor_cores.logits(hidden_there, logits_there, bench.stream()); },
                 {{logits_there, first}});
    const Tensor chosen = Tensor::empty({num_tokens, kTopk}, DType::kI32);
    const Tensor chosen_weights = Tensor::empty({num_tokens, kTopk}, DType::kF32);
    on_cpu.select(logits, chosen, chosen_weights, Stream{});
    const Tensor chosen_there = bench.empty(chosen.shape(), DType::kI32);
    const Tensor chosen_weights_there = bench.empty(chosen.shape(), DType::kF32);
    const Tensor given = bench.take(logits);
    bench.report(fmt::format("router select {} x 256, grouped top 8", num_tokens),
                 logits.nbytes() + 2 * chosen.nbytes(),
                 [&] { router.select(given, chosen_there, chosen_weights_there, bench.stream()); },
                 {{chosen_there, chosen}, {chosen_weights_there, chosen_weights}});
  }
}

}  // namespace
}  // namespace moebius

int main() {
  if (moebius::cuda_device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return 0;
  }
  moebius::bench_all(moebius::Bench());
  return 0;
}
