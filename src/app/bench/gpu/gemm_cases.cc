// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "app/bench/gpu/cublas.h"
#include "app/bench/gpu/experts_bench.h"
#include "app/bench/gpu/gemm_data.h"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/activation/activation_codes.h"

namespace moebius::bench {

namespace {

using app::Json;

constexpr int64_t kBlock = 128;
constexpr int kCheckedColumns = 8;
// Of sums rounded to bf16.  Of cuBLASLt's fp8 products not all bits are summed.
constexpr double kTolerance = 4e-3;
constexpr double kToleranceOfOthers = 2e-2;

constexpr std::string_view kSm90 = "sm90";
constexpr std::string_view kDrawn = "sm90_drawn";  // with GroupedGemm::next_item
constexpr std::string_view kCublas = "cublaslt";
constexpr std::string_view kInTwo = "gemm_then_activation";  // drawn, too
constexpr std::string_view kInOne = "activated_gemm";

enum class Sizes {
  kEven,
  kZipf,     // group g has a share of 1 / (g + 1), shuffled; a quarter of the groups is empty
  kBatched,  // even, in a room of four times as many rows per group
};

struct GemmProblem {
  std::string name;
  int64_t groups;
  int64_t rows;  // of a group, on average
  int64_t n;
  int64_t k;
  DType dtype;
  Sizes sizes = Sizes::kEven;
  bool is_first = false;  // of the layer's two: an activation follows

  double weight() const { return static_cast<double>(n * k); }  // of a group, elements
};

std::vector<int32_t> draw_sizes(const GemmProblem& p) {
  const auto groups = static_cast<size_t>(p.groups);
  std::vector<int32_t> sizes(groups, static_cast<int32_t>(p.rows));
  if (p.sizes != Sizes::kZipf) {
    return sizes;
  }
  const size_t used = groups - groups / 4;
  double total = 0;
  for (size_t g = 0; g < used; ++g) {
    total += 1.0 / static_cast<double>(g + 1);
  }
  int64_t left = p.groups * p.rows;
  std::fill(sizes.begin(), sizes.end(), 0);
  for (size_t g = used; g-- > 0;) {
    const double share =
        static_cast<double>(p.groups * p.rows) / total / static_cast<double>(g + 1);
    // 7 is coprime to the numbers of groups used here.
    sizes[g * 7 % groups] = static_cast<int32_t>(g == 0 ? left : std::llround(share));
    left -= std::llround(share);
  }
  return sizes;
}

Tensor to_gpu(const std::vector<int32_t>& values, const ColdGpu& gpu) {
  const Tensor tensor = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32);
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return gpu.take(tensor);
}

cuda::GroupedGemm make_operands(const GemmProblem& p,
                                const std::vector<int32_t>& sizes,
                                const ColdGpu& gpu) {
  const bool is_batched = p.sizes == Sizes::kBatched;
  const auto rows_by = [&](int64_t columns) {
    return is_batched ? Shape{p.groups, 4 * p.rows, columns} : Shape{p.groups * p.rows, columns};
  };
  const auto blocks = [](int64_t size) { return (size + kBlock - 1) / kBlock; };
  cuda::GroupedGemm gemm;
  gemm.a = gpu.empty(rows_by(p.k), p.dtype);
  gemm.b = gpu.empty({p.groups, p.n, p.k}, p.dtype);
  gemm.out = gpu.empty(rows_by(p.n), DType::kBF16);
  fill_random(gemm.a, 1, gpu.stream());
  fill_random(gemm.b, 2, gpu.stream());
  if (p.dtype == DType::kF8E4M3) {
    gemm.a_scale = gpu.empty(rows_by(blocks(p.k)), DType::kF32);
    gemm.b_scale = gpu.empty({p.groups, blocks(p.n), blocks(p.k)}, DType::kF32);
    fill_random(gemm.a_scale, 3, gpu.stream());
    fill_random(gemm.b_scale, 4, gpu.stream());
  }
  if (is_batched) {
    gemm.group_counts = to_gpu(sizes, gpu);
  } else {
    std::vector<int32_t> offsets(sizes.size() + 1, 0);
    std::inclusive_scan(sizes.begin(), sizes.end(), offsets.begin() + 1);
    gemm.group_offsets = to_gpu(offsets, gpu);
  }
  return gemm;
}

using Difference = std::function<std::optional<std::string>()>;

// One way to compute it, once `out` is poisoned.
void run_way(const GemmProblem& p,
             const std::vector<int32_t>& sizes,
             std::string_view impl,
             const Tensor& out,
             const Difference& difference,
             const std::function<void()>& work,
             const CaseSetup& setup,
             const ColdGpu& gpu) {
  if (!setup.wants(p.name, impl)) {
    return;
  }
  Case c;
  c.problem = p.name;
  c.impl = impl;
  c.call = [&] {
    gpu.poison(out);
    work();
  };
  c.timed_call = [&] { return gpu.seconds(work); };
  c.difference = difference;
  c.metrics = [&](double seconds) {
    const auto in_use =
        sizes.size() - static_cast<size_t>(std::count(sizes.begin(), sizes.end(), 0));
    const double flops = 2.0 * static_cast<double>(p.groups * p.rows) * p.weight();
    const double bytes = static_cast<double>(in_use) * p.weight() * bits(p.dtype) / 8;
    return std::vector<Json>{flops / seconds * 1e-9, bytes / seconds * 1e-9, Json()};
  };
  setup.visit(c);
}

Difference from_sums(const cuda::GroupedGemm& gemm, double tolerance, const ColdGpu& gpu) {
  return [gemm, tolerance, stream = gpu.stream()]() -> std::optional<std::string> {
    const GemmError error = check_products(gemm, kCheckedColumns, stream);
    if (error.relative < tolerance && error.unwritten == 0) {
      return std::nullopt;
    }
    return fmt::format("relative error {:.2e}, tolerance {:.0e}; {} of the elements looked at NaN",
                       error.relative, tolerance, error.unwritten);
  };
}

bool same_bytes(const Tensor& a, const Tensor& b, const Stream& stream) {
  const Tensor a_here = to_device(a, Device::cpu(), stream);
  const Tensor b_here = to_device(b, Device::cpu(), stream);
  stream.synchronize();
  return std::memcmp(a_here.raw(), b_here.raw(), static_cast<size_t>(a_here.nbytes())) == 0;
}

// The GEMM and the activation, in two kernels and in one: the same bytes.
void run_activated(const GemmProblem& p,
                   const std::vector<int32_t>& sizes,
                   const cuda::GroupedGemm& gemm,
                   const CaseSetup& setup,
                   const ColdGpu& gpu) {
  const bool is_fp8 = p.dtype == DType::kF8E4M3;
  const auto rows = cuda::RowGroups::sorted(gemm.group_offsets.data<int32_t>(), p.groups);
  const Stream& stream = gpu.stream();
  const int64_t width = p.n / 2;
  const auto take_rows = [&] {
    cuda::RowOperand out;
    out.values = gpu.empty({p.groups * p.rows, width}, p.dtype);
    if (is_fp8) {
      out.block = kBlock;
      out.scale = gpu.empty({p.groups * p.rows, width / kBlock}, DType::kF32);
    }
    return out;
  };
  const cuda::RowOperand in_two = take_rows();
  const cuda::RowOperand in_one = take_rows();
  QuantizeSpec spec;
  spec.group = {1, kBlock};
  const auto run_in_two = [&] {
    cuda::sm90_grouped_gemm(gemm, stream);
    if (is_fp8) {
      cuda::activate_to_codes({}, spec, rows, gemm.out, in_two, stream);
    } else {
      cuda::activate({}, rows, gemm.out, in_two.values, stream);
    }
  };
  cuda::GroupedGemm activated = gemm;
  activated.activates = true;
  activated.out = in_one.values;
  activated.out_scale = in_one.scale;

  run_way(p, sizes, kInTwo, gemm.out, from_sums(gemm, kTolerance, gpu), run_in_two, setup, gpu);
  const auto differs = [&](const Tensor& one, const Tensor& two) {
    return one && !same_bytes(one, two, stream);
  };
  const Difference from_two = [&]() -> std::optional<std::string> {
    run_in_two();
    if (differs(in_one.values, in_two.values) || differs(in_one.scale, in_two.scale)) {
      return "the bytes are not those of two kernels";
    }
    return std::nullopt;
  };
  run_way(
      p, sizes, kInOne, in_one.values, from_two,
      [&] { cuda::sm90_grouped_gemm(activated, stream); }, setup, gpu);
}

void run_problem(const GemmProblem& p, const CaseSetup& setup, const ColdGpu& gpu) {
  const auto is_wanted = [&](std::string_view impl) { return setup.wants(p.name, impl); };
  const auto all = {kSm90, kDrawn, kCublas, kInTwo, kInOne};
  if (std::none_of(all.begin(), all.end(), is_wanted)) {
    return;
  }
  const std::vector<int32_t> sizes = draw_sizes(p);
  const cuda::GroupedGemm gemm = make_operands(p, sizes, gpu);
  if (const Support support = cuda::sm90_grouped_gemm_supports(gemm); !support) {
    Case c;
    c.problem = p.name;
    c.impl = kSm90;
    c.refusal = support.reason;
    setup.visit(c);
    return;
  }
  const Stream& stream = gpu.stream();
  const Difference difference = from_sums(gemm, kTolerance, gpu);
  run_way(
      p, sizes, kSm90, gemm.out, difference, [&] { cuda::sm90_grouped_gemm(gemm, stream); }, setup,
      gpu);
  cuda::GroupedGemm drawn = gemm;
  drawn.next_item = Tensor::zeros({2}, DType::kI32, gpu.device());
  run_way(
      p, sizes, kDrawn, gemm.out, difference, [&] { cuda::sm90_grouped_gemm(drawn, stream); },
      setup, gpu);
  if (p.is_first && p.sizes == Sizes::kEven) {
    run_activated(p, sizes, drawn, setup, gpu);
  }
  if (p.sizes == Sizes::kEven) {
    cuda::GroupedGemm plain = gemm;  // cuBLASLt knows no scales per block
    plain.a_scale = plain.b_scale = Tensor();
    if (const auto theirs = cublas_even_groups(plain, stream)) {
      run_way(p, sizes, kCublas, plain.out, from_sums(plain, kToleranceOfOthers, gpu), theirs,
              setup, gpu);
    }
  }
}

std::vector<GemmProblem> all_problems() {
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
  constexpr int64_t kMostBatchedRows = 128;
  std::vector<GemmProblem> problems;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const Layer& layer : kLayers) {
      const auto add = [&](const char* suffix, Sizes sizes) {
        problems.push_back({fmt::format("gemm/{}/{}{}", moebius::name(dtype), layer.name, suffix),
                            layer.groups, layer.rows, layer.n, layer.k, dtype, sizes,
                            std::string_view(layer.name).find("w13") != std::string_view::npos});
      };
      add("", Sizes::kEven);
      add("/zipf", Sizes::kZipf);
      if (layer.rows <= kMostBatchedRows) {
        add("/batched", Sizes::kBatched);
      }
    }
  }
  return problems;
}

}  // namespace

void run_gpu_gemm_cases(const CaseSetup& setup, const ColdGpu& gpu) {
  for (const GemmProblem& p : all_problems()) {
    run_problem(p, setup, gpu);
  }
}

}  // namespace moebius::bench
