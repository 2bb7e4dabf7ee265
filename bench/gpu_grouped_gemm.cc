// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMMs of real models on one GPU, checked against f64 sums, then timed by events with a
// cold L2, beside cuBLASLt where groups are even.  A line of JSON per case.
//   gpu_grouped_gemm [part of a case's name] [iterations]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "bench/gpu_cublas.h"
#include "bench/gpu_gemm_data.h"
#include "core/cuda/check.h"

namespace moebius {
namespace {

constexpr int64_t kBlock = 128;
constexpr int kCheckedColumns = 8;

enum class Sizes {
  kEven,
  kZipf,     // group g has a share of 1 / (g + 1), shuffled; a quarter of the groups is empty
  kBatched,  // even, in a room of four times as many rows per group
};

struct Case {
  std::string name;
  int64_t groups;
  int64_t rows;  // of a group, on average
  int64_t n;
  int64_t k;
  DType dtype;
  Sizes sizes = Sizes::kEven;
};

std::vector<int32_t> draw_sizes(const Case& c) {
  const auto groups = static_cast<size_t>(c.groups);
  std::vector<int32_t> sizes(groups, static_cast<int32_t>(c.rows));
  if (c.sizes != Sizes::kZipf) {
    return sizes;
  }
  const size_t used = groups - groups / 4;
  double total = 0;
  for (size_t g = 0; g < used; ++g) {
    total += 1.0 / static_cast<double>(g + 1);
  }
  int64_t left = c.groups * c.rows;
  std::fill(sizes.begin(), sizes.end(), 0);
  for (size_t g = used; g-- > 0;) {
    const double share =
        static_cast<double>(c.groups * c.rows) / total / static_cast<double>(g + 1);
    // 7 is coprime to the numbers of groups used here.
    sizes[g * 7 % groups] = static_cast<int32_t>(g == 0 ? left : std::llround(share));
    left -= std::llround(share);
  }
  return sizes;
}

Tensor to_gpu(const std::vector<int32_t>& values, const Stream& stream) {
  Tensor tensor = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32);
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  Tensor there = to_device(tensor, stream.device(), stream);
  stream.synchronize();
  return there;
}

class Bench {
 public:
  explicit Bench(int iterations) : stream_(Stream::cuda(0)), iterations_(iterations) {
    cuda::check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
    flush_ = Tensor::zeros({int64_t{256} << 20}, DType::kU8, stream_.device());
  }

  void run(const Case& c) const {
    const std::vector<int32_t> sizes = draw_sizes(c);
    const cuda::GroupedGemm gemm = make_operands(c, sizes);
    const Support support = cuda::sm90_grouped_gemm_supports(gemm);
    if (!support) {
      fmt::print("{{\"case\": \"{}\", \"unsupported\": \"{}\"}}\n", c.name, support.reason);
      return;
    }
    const auto work = [&] { cuda::sm90_grouped_gemm(gemm, stream_); };
    cuda::check_cuda(cudaMemsetAsync(gemm.out.raw(), 0xff, static_cast<size_t>(gemm.out.nbytes()),
                                     cuda::as_stream(stream_.native_handle())),
                     "cudaMemsetAsync");
    work();
    const GemmError error = check_products(gemm, kCheckedColumns, stream_);
    if (!(error.relative < 4e-3) || error.unwritten > 0) {
      fmt::print("{{\"case\": \"{}\", \"WRONG\": {}, \"unwritten\": {}}}\n", c.name, error.relative,
                 error.unwritten);
      return;
    }
    cuda::GroupedGemm drawn = gemm;
    drawn.next_item = Tensor::zeros({2}, DType::kI32, stream_.device());
    std::vector<std::function<void()>> ways = {work,
                                               [&] { cuda::sm90_grouped_gemm(drawn, stream_); }};
    if (c.sizes == Sizes::kEven) {
      if (const auto theirs = cublas_even_groups(gemm, stream_)) {
        ways.push_back(theirs);
      }
    }
    const std::vector<double> us = time(ways);
    std::string line = fmt::format(
        "{{\"case\": \"{}\", \"error\": {:.1e}, \"us\": {:.1f}, \"tflops\": {:.0f}, "
        "\"weights_tbs\": {:.2f}, \"drawn_us\": {:.1f}",
        c.name, error.relative, us[0], flops(c) / us[0] * 1e-6,
        weight_bytes(c, sizes) / us[0] * 1e-6, us[1]);
    if (us.size() > 2) {
      line += fmt::format(", \"cublas_us\": {:.1f}, \"cublas_tflops\": {:.0f}", us[2],
                          flops(c) / us[2] * 1e-6);
    }
    fmt::print("{}}}\n", line);
    std::fflush(stdout);
  }

 private:
  static double flops(const Case& c) {
    return 2.0 * static_cast<double>(c.groups * c.rows) * static_cast<double>(c.n * c.k);
  }
  // Of groups that have rows.
  static double weight_bytes(const Case& c, const std::vector<int32_t>& sizes) {
    const auto used = sizes.size() - static_cast<size_t>(std::count(sizes.begin(), sizes.end(), 0));
    return static_cast<double>(used) * static_cast<double>(c.n * c.k * bits(c.dtype) / 8);
  }

  cuda::GroupedGemm make_operands(const Case& c, const std::vector<int32_t>& sizes) const {
    const Device gpu = stream_.device();
    const bool is_batched = c.sizes == Sizes::kBatched;
    const auto rows_by = [&](int64_t columns) {
      return is_batched ? Shape{c.groups, 4 * c.rows, columns} : Shape{c.groups * c.rows, columns};
    };
    const int64_t blocks = (c.k + kBlock - 1) / kBlock;
    cuda::GroupedGemm gemm;
    gemm.a = Tensor::empty(rows_by(c.k), c.dtype, gpu);
    gemm.b = Tensor::empty({c.groups, c.n, c.k}, c.dtype, gpu);
    gemm.out = Tensor::empty(rows_by(c.n), DType::kBF16, gpu);
    fill_random(gemm.a, 1, stream_);
    fill_random(gemm.b, 2, stream_);
    if (c.dtype == DType::kF8E4M3) {
      gemm.a_scale = Tensor::empty(rows_by(blocks), DType::kF32, gpu);
      gemm.b_scale =
          Tensor::empty({c.groups, (c.n + kBlock - 1) / kBlock, blocks}, DType::kF32, gpu);
      fill_random(gemm.a_scale, 3, stream_);
      fill_random(gemm.b_scale, 4, stream_);
    }
    if (is_batched) {
      gemm.group_counts = to_gpu(sizes, stream_);
    } else {
      std::vector<int32_t> offsets(sizes.size() + 1, 0);
      std::inclusive_scan(sizes.begin(), sizes.end(), offsets.begin() + 1);
      gemm.group_offsets = to_gpu(offsets, stream_);
    }
    return gemm;
  }

  // Median microseconds of each way with a cold L2.  In turn, since the clock falls with the heat.
  std::vector<double> time(const std::vector<std::function<void()>>& ways) const {
    constexpr int kWarmUp = 2;
    const cudaStream_t stream = cuda::as_stream(stream_.native_handle());
    std::vector<std::vector<float>> times(ways.size());
    for (int i = 0; i < kWarmUp + iterations_; ++i) {
      for (size_t way = 0; way < ways.size(); ++way) {
        cuda::check_cuda(
            cudaMemsetAsync(flush_.raw(), i, static_cast<size_t>(flush_.nbytes()), stream),
            "cudaMemsetAsync");
        cuda::check_cuda(cudaEventRecord(begin_, stream), "cudaEventRecord");
        ways[way]();
        cuda::check_cuda(cudaEventRecord(end_, stream), "cudaEventRecord");
        cuda::check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
        float ms = 0.0f;
        cuda::check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
        if (i >= kWarmUp) {
          times[way].push_back(ms * 1000.0f);
        }
      }
    }
    std::vector<double> medians;
    for (std::vector<float>& of_way : times) {
      const auto middle = of_way.begin() + static_cast<int64_t>(of_way.size()) / 2;
      std::nth_element(of_way.begin(), middle, of_way.end());
      medians.push_back(static_cast<double>(*middle));
    }
    return medians;
  }

  Stream stream_;
  int iterations_;
  cudaEvent_t begin_{};
  cudaEvent_t end_{};
  Tensor flush_;
};

std::vector<Case> all_cases() {
  struct Layer {
    const char* name;
    int64_t groups;
    int64_t rows;
    int64_t n;
    int64_t k;
  };
  constexpr Layer kLayers[] = {
      {"dsv3_w13", 32, 1024, 4096, 7168},      {"dsv3_w2", 32, 1024, 7168, 2048},
      {"dsv3_w13_decode", 32, 32, 4096, 7168}, {"dsv3_w2_decode", 32, 32, 7168, 2048},
      {"qwen3_w13", 16, 2048, 1536, 2048},     {"qwen3_w2", 16, 2048, 2048, 768},
  };
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const Layer& layer : kLayers) {
      const std::string name = fmt::format("{}_{}", moebius::name(dtype), layer.name);
      const Case even{name, layer.groups, layer.rows, layer.n, layer.k, dtype};
      cases.push_back(even);
      Case zipf = even;
      zipf.name += "_zipf";
      zipf.sizes = Sizes::kZipf;
      cases.push_back(zipf);
      if (layer.rows <= 128) {
        Case batched = even;
        batched.name += "_batched";
        batched.sizes = Sizes::kBatched;
        cases.push_back(batched);
      }
    }
  }
  return cases;
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  if (moebius::cuda_device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return 0;
  }
  const std::string part = argc > 1 ? argv[1] : "";
  const moebius::Bench bench(argc > 2 ? std::atoi(argv[2]) : 20);
  for (const moebius::Case& c : moebius::all_cases()) {
    if (c.name.find(part) != std::string::npos) {
      bench.run(c);
    }
  }
  return 0;
}
