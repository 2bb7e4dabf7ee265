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

using app::Value;

constexpr int64_t kBlock = 128;
constexpr int kCheckedColumns = 8;
// The first is for sums that are rounded to bf16.  The second is for cuBLASLt, which does not sum
// all bits of fp8 products.
constexpr double kTolerance = 4e-3;
constexpr double kToleranceOfOthers = 2e-2;

constexpr std::string_view kSm90 = "sm90";
constexpr std::string_view kDrawn = "sm90_drawn";  // draws its work items: GroupedGemm::next_item
constexpr std::string_view kCublas = "cublaslt";
constexpr std::string_view kInTwo = "gemm_then_activation";  // also drawn
constexpr std::string_view kInOne = "activated_gemm";

enum class Sizes {
  kEven,
  kZipf,     // shares of 1, 1/2, 1/3, ..., shuffled; a quarter of the groups is empty
  kBatched,  // even, in the batched format with room for four times as many rows
};

struct GemmProblem {
  std::string name;
  int64_t groups;
  int64_t rows;  // of a group, on average
  int64_t n;
  int64_t k;
  DType dtype;
  Sizes sizes = Sizes::kEven;
  bool is_first = false;  // GEMM1 of a layer: an activation follows

  double weight() const { return static_cast<double>(n * k); }  // elements of a group
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
    // Why 7: it is coprime to the numbers of groups that are used here.
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

// The operands of a problem on the GPU, and the implementations that multiply them.
class GemmCases {
 public:
  GemmCases(const GemmProblem& problem, const CaseSetup& setup, const ColdGpu& gpu)
      : p_(problem), setup_(setup), gpu_(gpu), sizes_(draw_sizes(problem)) {
    make_operands();
  }
  void run();

 private:
  using Difference = std::function<std::optional<std::string>()>;

  void make_operands();
  // Runs the case of one implementation.  The call that is checked poisons `out` first.
  void run_way(std::string_view impl,
               const Tensor& out,
               const Difference& difference,
               const std::function<void()>& work) const;
  // Runs the GEMM and the activation in two kernels and in one, which must give the same bytes.
  void run_activated(const cuda::GroupedGemm& gemm) const;
  Difference from_sums(const cuda::GroupedGemm& gemm, double tolerance) const;
  bool differ(const Tensor& a, const Tensor& b) const;

  const GemmProblem& p_;
  const CaseSetup& setup_;
  const ColdGpu& gpu_;
  std::vector<int32_t> sizes_;
  cuda::GroupedGemm gemm_;
};

void GemmCases::make_operands() {
  const bool is_batched = p_.sizes == Sizes::kBatched;
  const auto rows_by = [&](int64_t columns) {
    return is_batched ? Shape{p_.groups, 4 * p_.rows, columns}
                      : Shape{p_.groups * p_.rows, columns};
  };
  const auto blocks = [](int64_t size) { return (size + kBlock - 1) / kBlock; };
  uint64_t seed = 0;
  const auto random = [&](const Shape& shape, DType dtype) {
    const Tensor tensor = gpu_.empty(shape, dtype);
    fill_random(tensor, ++seed, gpu_.stream());
    return tensor;
  };
  gemm_.a = random(rows_by(p_.k), p_.dtype);
  gemm_.b = random({p_.groups, p_.n, p_.k}, p_.dtype);
  gemm_.out = gpu_.empty(rows_by(p_.n), DType::kBF16);
  if (p_.dtype == DType::kF8E4M3) {
    gemm_.a_scale = random(rows_by(blocks(p_.k)), DType::kF32);
    gemm_.b_scale = random({p_.groups, blocks(p_.n), blocks(p_.k)}, DType::kF32);
  }
  if (is_batched) {
    gemm_.group_counts = to_gpu(sizes_, gpu_);
  } else {
    std::vector<int32_t> offsets(sizes_.size() + 1, 0);
    std::inclusive_scan(sizes_.begin(), sizes_.end(), offsets.begin() + 1);
    gemm_.group_offsets = to_gpu(offsets, gpu_);
  }
}

void GemmCases::run_way(std::string_view impl,
                        const Tensor& out,
                        const Difference& difference,
                        const std::function<void()>& work) const {
  if (!setup_.wants(p_.name, impl)) {
    return;
  }
  Case c = cold_case(p_.name, impl, out, work, gpu_);
  c.difference = difference;
  c.metrics = [&](double seconds) {
    const auto in_use =
        sizes_.size() - static_cast<size_t>(std::count(sizes_.begin(), sizes_.end(), 0));
    const double flops = 2.0 * static_cast<double>(p_.groups * p_.rows) * p_.weight();
    const double bytes = static_cast<double>(in_use) * p_.weight() * bits(p_.dtype) / 8;
    return std::vector<Value>{flops / seconds * 1e-9, bytes / seconds * 1e-9, Value(), Value()};
  };
  setup_.visit(c);
}

GemmCases::Difference GemmCases::from_sums(const cuda::GroupedGemm& gemm, double tolerance) const {
  return [gemm, tolerance, stream = gpu_.stream()]() -> std::optional<std::string> {
    const GemmError error = check_products(gemm, kCheckedColumns, stream);
    if (error.relative < tolerance && error.unwritten == 0) {
      return std::nullopt;
    }
    return fmt::format("relative error {:.2e}, tolerance {:.0e}; {} of the elements looked at NaN",
                       error.relative, tolerance, error.unwritten);
  };
}

bool GemmCases::differ(const Tensor& a, const Tensor& b) const {
  if (!a) {
    return false;
  }
  const Tensor a_here = to_device(a, Device::cpu(), gpu_.stream());
  const Tensor b_here = to_device(b, Device::cpu(), gpu_.stream());
  gpu_.stream().synchronize();
  return std::memcmp(a_here.raw(), b_here.raw(), static_cast<size_t>(a_here.nbytes())) != 0;
}

void GemmCases::run_activated(const cuda::GroupedGemm& gemm) const {
  const bool is_fp8 = p_.dtype == DType::kF8E4M3;
  const auto rows = cuda::RowGroups::sorted(gemm.group_offsets.data<int32_t>(), p_.groups);
  const Stream& stream = gpu_.stream();
  const int64_t width = p_.n / 2;
  const auto take_rows = [&] {
    cuda::RowOperand out;
    out.values = gpu_.empty({p_.groups * p_.rows, width}, p_.dtype);
    if (is_fp8) {
      out.block = kBlock;
      out.scale = gpu_.empty({p_.groups * p_.rows, width / kBlock}, DType::kF32);
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
      cuda::activate_to_codes({{}, spec}, rows, gemm.out, in_two, stream);
    } else {
      cuda::activate({}, rows, gemm.out, in_two.values, stream);
    }
  };
  cuda::GroupedGemm activated = gemm;
  activated.activates = true;
  activated.out = in_one.values;
  activated.out_scale = in_one.scale;

  run_way(kInTwo, gemm.out, from_sums(gemm, kTolerance), run_in_two);
  const Difference from_two = [&]() -> std::optional<std::string> {
    run_in_two();
    if (differ(in_one.values, in_two.values) || differ(in_one.scale, in_two.scale)) {
      return "the bytes are not those of two kernels";
    }
    return std::nullopt;
  };
  run_way(kInOne, in_one.values, from_two, [&] { cuda::sm90_grouped_gemm(activated, stream); });
}

void GemmCases::run() {
  if (const Support support = cuda::sm90_grouped_gemm_supports(gemm_); !support) {
    Case c;
    c.problem = p_.name;
    c.impl = kSm90;
    c.refusal = support.reason;
    setup_.visit(c);
    return;
  }
  const Stream& stream = gpu_.stream();
  const Difference difference = from_sums(gemm_, kTolerance);
  run_way(kSm90, gemm_.out, difference, [&] { cuda::sm90_grouped_gemm(gemm_, stream); });
  cuda::GroupedGemm drawn = gemm_;
  drawn.next_item = Tensor::zeros({2}, DType::kI32, gpu_.device());
  run_way(kDrawn, gemm_.out, difference, [&] { cuda::sm90_grouped_gemm(drawn, stream); });
  if (p_.sizes != Sizes::kEven) {
    return;
  }
  if (p_.is_first) {
    run_activated(drawn);
  }
  cuda::GroupedGemm plain = gemm_;  // cuBLASLt has no scales per block
  plain.a_scale = plain.b_scale = Tensor();
  if (const auto theirs = cublas_even_groups(plain, stream)) {
    run_way(kCublas, plain.out, from_sums(plain, kToleranceOfOthers), theirs);
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
    const auto all = {kSm90, kDrawn, kCublas, kInTwo, kInOne};
    if (std::any_of(all.begin(), all.end(),
                    [&](std::string_view impl) { return setup.wants(p.name, impl); })) {
      GemmCases(p, setup, gpu).run();
    }
  }
}

}  // namespace moebius::bench
