// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string>
#include <string_view>

#include "app/bench/gpu/experts_bench.h"
#include "app/bench/probes.h"
#include "app/run/random_tensor.h"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/activation/activation_codes.h"
#include "experts/ref/activation.h"

namespace moebius::bench {

namespace {

using app::Value;

// A rank's share of DeepSeek-V3 with 4096 tokens on each of 8 ranks.
constexpr int64_t kRows = 32768;
constexpr int64_t kWidth = 2048;
constexpr int64_t kCheckedRows = 8;

// How far an element may be from bf16(silu(gate)) * up, beyond the rounding to bf16: half a step of
// its code, which is relative to the element or to its scale.
struct Steps {
  double relative;
  double of_scale;
};
// The relative error of the kernels' silu for bf16, about 12 units in the last place of f32.  Where
// it decides how silu is rounded to bf16, both results are right.
constexpr double kSiluError = 0x1p-19;

// Checks values [kRows, kWidth]; where they are codes, `scale` has their scales.
std::optional<std::string> difference(const Tensor& in,
                                      const Tensor& values,
                                      const Tensor& scale,
                                      const Steps& steps) {
  for (int64_t n = 0; n < kCheckedRows; ++n) {
    const int64_t row = probe_row(n, kCheckedRows, kRows);
    for (int64_t i = 0; i < kWidth; ++i) {
      const double gate = static_cast<double>(get_float(in, row * 2 * kWidth + i));
      const double up = static_cast<double>(get_float(in, row * 2 * kWidth + kWidth + i));
      const double silu = ref::silu(gate);
      const int64_t block = scale ? kWidth / scale.dim(1) : kWidth;
      const double unit = scale ? static_cast<double>(get_float(scale[row], i / block)) : 1.0;
      const double actual = static_cast<double>(get_float(values, row * kWidth + i)) * unit;
      double expected = 0.0;
      double allowed = 0.0;
      const auto is_near = [&](double unrounded) {
        expected =
            static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(unrounded)))) * up;
        allowed = (0x1p-8 + steps.relative) * std::abs(expected) + steps.of_scale * unit;
        return std::abs(actual - expected) <= allowed;
      };
      if (!is_near(silu * (1.0 - kSiluError)) && !is_near(silu * (1.0 + kSiluError))) {
        return fmt::format("row {}, column {}: {}, expected {}, {} apart at most", row, i, actual,
                           expected, allowed);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

void run_gpu_activation_cases(const CaseSetup& setup, const ColdGpu& gpu) {
  const auto is_wanted = [&](std::string_view problem) { return setup.wants(problem, kImpl); };
  constexpr std::string_view kPlain = "activation/bf16";
  constexpr std::string_view kFp8 = "activation/fp8_1x128";
  constexpr std::string_view kInt8 = "activation/int8_token";
  if (!is_wanted(kPlain) && !is_wanted(kFp8) && !is_wanted(kInt8)) {
    return;
  }
  const Tensor in = app::random_normal({kRows, 2 * kWidth}, DType::kBF16, 2);
  const Tensor in_there = gpu.take(in);
  const auto rows = cuda::RowGroups::all(kRows);
  const auto run = [&](std::string_view problem, const cuda::RowOperand& out, const Steps& steps,
                       const std::function<void()>& work) {
    if (!is_wanted(problem)) {
      return;
    }
    Case c = cold_case(problem, kImpl, out.values, work, gpu);
    c.difference = [&] {
      const auto here = [&](const Tensor& tensor) {
        return tensor ? to_device(tensor, Device::cpu(), gpu.stream()) : tensor;
      };
      return difference(in, here(out.values), here(out.scale), steps);
    };
    c.metrics = [&](double seconds) {
      const auto bytes = static_cast<double>(in.nbytes() + out.values.nbytes() +
                                             (out.scale ? out.scale.nbytes() : 0));
      return std::vector<Value>{Value(), Value(), bytes / seconds * 1e-9, Value()};
    };
    setup.visit(c);
  };

  cuda::RowOperand plain;
  plain.values = gpu.empty({kRows, kWidth}, DType::kBF16);
  run(kPlain, plain, {0.0, 0.0},
      [&] { cuda::activate({}, rows, in_there, plain.values, gpu.stream()); });
  const auto run_codes = [&](std::string_view problem, QuantFormat format, GroupShape group,
                             int64_t block, const Steps& steps) {
    QuantizeSpec spec;
    spec.format = format;
    spec.group = group;
    cuda::RowOperand out;
    out.values = gpu.empty({kRows, kWidth}, storage_dtype(format));
    out.scales = cuda::RowScales::kPerRow;
    out.block = block;
    out.scale = gpu.empty({kRows, kWidth / block}, DType::kF32);
    run(problem, out, steps, [&] {
      cuda::activate_to_codes({{}, spec}, rows, in_there, out, gpu.stream());
    });
  };
  // e4m3 has 3 bits of mantissa, and steps of 2^-9 below its normal numbers.  Half a step is
  // allowed.
  run_codes(kFp8, QuantFormat::kFp8, {1, 128}, 128, {0x1p-4, 0x1p-10});
  run_codes(kInt8, QuantFormat::kInt8, GroupShape::per_token(), kWidth, {0.0, 0.5});
}

}  // namespace moebius::bench
