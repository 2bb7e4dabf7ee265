// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every implementation of the quant stage must give the same bits as `ref`; a NaN agrees with any
// NaN.  Operands are made on the CPU and moved to the implementation's device and back.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "moebius/quantize.h"
#include "problems/place.h"
#include "quant/impls.h"
#include "tests/quant/forced_quant.h"
#ifdef MOEBIUS_HAVE_CUDA
#include "tests/quant/cuda_rows.h"
#endif

namespace moebius::quant {

inline std::vector<QuantizeSpec> all_specs() {
  std::vector<QuantizeSpec> specs;
  for (const GroupShape group :
       {GroupShape::per_tensor(), GroupShape::per_token(), GroupShape{1, 128}, GroupShape{1, 7},
        GroupShape{128, 128}, GroupShape{2, 20}}) {
    specs.push_back({QuantFormat::kFp8, group});
  }
  for (const GroupShape group : {GroupShape{1, 128}, GroupShape{2, 20}}) {
    specs.push_back({QuantFormat::kFp8, group, /*power_of_two_scale=*/true});
  }
  for (const GroupShape group :
       {GroupShape::per_tensor(), GroupShape::per_token(), GroupShape{1, 64}, GroupShape{1, 9}}) {
    specs.push_back({QuantFormat::kInt8, group});
  }
  for (const GroupShape group : {GroupShape::per_token(), GroupShape{1, 32}, GroupShape{1, 10}}) {
    for (const bool asymmetric : {false, true}) {
      specs.push_back({QuantFormat::kInt4, group, false, asymmetric});
    }
  }
  for (const QuantFormat format : {QuantFormat::kMxfp4, QuantFormat::kMxfp6E3M2,
                                   QuantFormat::kMxfp6E2M3, QuantFormat::kMxfp8}) {
    specs.push_back({format, {1, 32}});
  }
  for (const bool per_row : {false, true}) {
    specs.push_back({QuantFormat::kNvfp4, {1, 16}, false, false, per_row});
  }
  return specs;
}

inline std::string describe(const QuantizeSpec& spec, const Tensor& x) {
  return std::string(name(spec.format)) + " {" + std::to_string(spec.group.row) + ", " +
         std::to_string(spec.group.col) + "}" + (spec.asymmetric ? " asymmetric" : "") +
         (spec.power_of_two_scale ? " power of two" : "") +
         (spec.global_scale_per_row ? " global scale per row" : "") + " of " +
         std::string(name(x.dtype())) + " " + to_string(x.shape());
}

// The kinds of values that a matrix is filled with.
enum class Fill { kNormal, kWide, kSpecial, kZero };
inline constexpr Fill kFills[] = {Fill::kNormal, Fill::kWide, Fill::kSpecial, Fill::kZero};

inline Tensor filled(int64_t rows, int64_t cols, DType dtype, Fill fill, uint32_t seed) {
  const float specials[] = {0.0f,
                            -0.0f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::denorm_min(),
                            448.0f,
                            -1.0f};
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const Tensor t = Tensor::empty({rows, cols}, dtype);
  for (int64_t i = 0; i < t.numel(); ++i) {
    float value = normal(rng);
    if (fill == Fill::kWide) {
      value = std::ldexp(value, static_cast<int>(rng() % 40) - 20);
    } else if (fill == Fill::kSpecial && rng() % 8 == 0) {
      value = specials[rng() % std::size(specials)];
    } else if (fill == Fill::kZero) {
      value = rng() % 2 == 0 ? 0.0f : -0.0f;
    }
    set_float(t, i, value);
  }
  return t;
}

// The index of the first element that differs; -1 when none does.
inline int64_t first_difference(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined() || a.nbytes() != b.nbytes()) {
    return 0;
  }
  if (!a.defined() || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0) {
    return -1;
  }
  for (int64_t i = 0; i < a.numel(); ++i) {
    const float x = get_float(a, i);
    const float y = get_float(b, i);
    if (std::memcmp(&x, &y, sizeof(x)) != 0 && !(std::isnan(x) && std::isnan(y))) {
      return i;
    }
  }
  return -1;
}

inline void expect_same(const Tensor& actual, const Tensor& expected, const std::string& what) {
  const int64_t i = first_difference(actual, expected);
  EXPECT_EQ(i, -1) << what << ": element " << i << " is " << get_float(actual, i) << ", ref has "
                   << get_float(expected, i);
}

inline void PrintTo(const Impl& impl, std::ostream* out) {
  *out << impl.name;
}

// The suite runs for each entry of impls(); it skips those that this machine refuses, with the
// reason.
class QuantConformance : public ::testing::TestWithParam<Impl> {
 protected:
  void SetUp() override {
    const Support support = GetParam().supports(cpu_features());
    if (!support.ok) {
      GTEST_SKIP() << "skipped: " << support.reason;
    }
    place_ = testing::Place(GetParam().device);
#ifdef MOEBIUS_HAVE_CUDA
    if (GetParam().device == DeviceType::kCuda) {
      kernels_ = cuda_rows(place_.stream);
    }
#endif
    if (GetParam().kernels != nullptr) {
      kernels_ = *GetParam().kernels;
    }
  }

  Quantized quantize_there(const Tensor& x,
                           const QuantizeSpec& spec,
                           const Tensor& static_scale = {},
                           const Tensor& global_scale = {}) const {
    Quantized q = allocate_quantized(spec, x.dim(0), x.dim(1), place_.device());
    const Tensor there = place_.take(x);
    const Tensor scales[] = {place_.take(static_scale), place_.take(global_scale)};
    quantize(there, spec, q, place_.stream, scales[0], scales[1]);
    return {place_.bring(q.values), place_.bring(q.scale), place_.bring(q.zero_point),
            place_.bring(q.global_scale)};
  }

  Tensor dequantize_there(const Quantized& q,
                          const QuantizeSpec& spec,
                          const Shape& shape,
                          DType dtype) const {
    const Quantized there = {place_.take(q.values), place_.take(q.scale), place_.take(q.zero_point),
                             place_.take(q.global_scale)};
    const Tensor out = Tensor::empty(shape, dtype, place_.device());
    dequantize(there, spec, out, place_.stream);
    return place_.bring(out);
  }

  Tensor quantize_dequantize_there(const Tensor& x, const QuantizeSpec& spec) const {
    const Tensor there = place_.take(x);
    const Tensor out = Tensor::empty(x.shape(), x.dtype(), place_.device());
    quantize_dequantize(there, spec, out, place_.stream);
    return place_.bring(out);
  }

  // What `ref` gives for x on the CPU.
  struct Expected {
    Quantized quantized;
    Tensor dequantized;
  };
  static Expected expected_of(const Tensor& x, const QuantizeSpec& spec) {
    const ForcedQuant forced("ref");
    Expected expected{quantize(x, spec), Tensor::empty(x.shape(), x.dtype())};
    dequantize(expected.quantized, spec, expected.dequantized, Stream{});
    return expected;
  }

  testing::Place place_;
  RowKernels kernels_{};  // they take host memory, also for a GPU
};

TEST_P(QuantConformance, QuantizesAndDequantizesLikeRef) {
  const int64_t all_rows[] = {0, 1, 3, 130};
  const int64_t all_cols[] = {1, 2, 15, 16, 17, 31, 32, 64, 96, 130, 160, 288};
  uint32_t seed = 1;
  for (const QuantizeSpec& spec : all_specs()) {
    for (const int64_t rows : all_rows) {
      for (const int64_t cols : all_cols) {
        const bool is_large = rows > 3;  // has several tasks; one shape, type and fill is enough
        if (!quantize_supported(spec, rows, cols) || (is_large && cols != 288)) {
          continue;
        }
        for (const DType dtype : kFloatTypes) {
          for (const Fill fill : kFills) {
            if (is_large && (dtype != DType::kBF16 || fill != Fill::kSpecial)) {
              continue;
            }
            const Tensor x = filled(rows, cols, dtype, fill, ++seed);
            const std::string what = describe(spec, x);
            const auto [expected, expected_out] = expected_of(x, spec);
            const ForcedQuant forced(GetParam().name);
            const Quantized actual = quantize_there(x, spec);
            expect_same(actual.values, expected.values, what + " values");
            expect_same(actual.scale, expected.scale, what + " scale");
            expect_same(actual.zero_point, expected.zero_point, what + " zero point");
            expect_same(actual.global_scale, expected.global_scale, what + " global scale");
            expect_same(dequantize_there(expected, spec, x.shape(), dtype), expected_out,
                        what + " dequantized");
            expect_same(quantize_dequantize_there(x, spec), expected_out,
                        what + " quantized and dequantized");
            if (HasFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

// Tests rows of real lengths with several blocks of work, and a matrix that starts at an odd
// element.
TEST_P(QuantConformance, LongRowsLikeRef) {
  const Shape shapes[] = {{9, 7168}, {3, 20480}, {33, 2880}, {257, 512}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t shift : {0, 1}) {
        const Tensor all = filled(1, shape.numel() + shift, dtype, Fill::kWide, 3);
        const Tensor x =
            all.view({shape.numel() + shift}).slice(shift, shape.numel() + shift).view(shape);
        for (const QuantizeSpec& spec : all_specs()) {
          const std::string what = describe(spec, x);
          const auto [expected, expected_out] = expected_of(x, spec);
          const ForcedQuant forced(GetParam().name);
          const Tensor all_there = place_.take(all.view({all.numel()})).clone();
          const Tensor there = all_there.slice(shift, all.numel()).view(shape);
          Quantized q = allocate_quantized(spec, shape[0], shape[1], place_.device());
          quantize(there, spec, q, place_.stream);
          expect_same(place_.bring(q.values), expected.values, what + " values");
          expect_same(place_.bring(q.scale), expected.scale, what + " scale");
          expect_same(dequantize_there(expected, spec, shape, dtype), expected_out,
                      what + " dequantized");
          quantize_dequantize(there, spec, there, place_.stream);  // in place
          expect_same(place_.bring(there), expected_out, what + " in place");
          if (HasFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_P(QuantConformance, GivenScalesAreUsedLikeRef) {
  const Tensor x = filled(5, 48, DType::kBF16, Fill::kSpecial, 77);
  for (const float value : {1.0f, 0.037f, 3e-5f, 2e4f, 0.0f}) {
    const Tensor scale = Tensor::empty({1}, DType::kF32);
    scale.data<float>()[0] = value;
    for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8, QuantFormat::kNvfp4}) {
      const bool is_nvfp4 = format == QuantFormat::kNvfp4;
      const QuantizeSpec spec{format, is_nvfp4 ? GroupShape{1, 16} : GroupShape::per_tensor()};
      Quantized expected = allocate_quantized(spec, 5, 48);
      const Tensor none;
      {
        const ForcedQuant forced("ref");
        quantize(x, spec, expected, Stream{}, is_nvfp4 ? none : scale, is_nvfp4 ? scale : none);
      }
      const ForcedQuant forced(GetParam().name);
      const Quantized actual =
          quantize_there(x, spec, is_nvfp4 ? none : scale, is_nvfp4 ? scale : none);
      expect_same(actual.values, expected.values, describe(spec, x));
      expect_same(actual.scale, expected.scale, describe(spec, x));
    }
  }
}

constexpr Encode kEncodes[] = {
    Encode::kE4M3Multiply,    Encode::kE4M3Divide,     Encode::kE4M3Overflow,
    Encode::kI8NearestDivide, Encode::kI8AwayMultiply, Encode::kI8TruncateDivide,
    Encode::kU4Divide,        Encode::kE2M1Multiply,   Encode::kE3M2Multiply,
    Encode::kE2M3Multiply,
};
constexpr Code kCodes[] = {Code::kE4M3, Code::kI8,   Code::kU4,
                           Code::kE2M1, Code::kE3M2, Code::kE2M3};

// All bf16 and f16 values, and floats of all exponents with the mantissas at which rounding
// changes.
inline std::vector<Tensor> all_elements() {
  std::vector<Tensor> result;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor t = Tensor::empty({1, 65536}, dtype);
    for (int i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(t.bytes() + 2 * i, &bits, 2);
    }
    result.push_back(t);
  }
  constexpr int kMantissas = 64;
  const Tensor t = Tensor::empty({1, 512 * kMantissas * 3}, DType::kF32);
  int64_t n = 0;
  for (uint32_t sign_exponent = 0; sign_exponent < 512; ++sign_exponent) {
    for (uint32_t m = 0; m < kMantissas; ++m) {
      const uint32_t bits = (sign_exponent << 23) | (m << 17);
      for (const uint32_t near : {bits, bits + 1, bits ^ 1u}) {
        std::memcpy(t.bytes() + 4 * n++, &near, 4);
      }
    }
  }
  result.push_back(t);
  return result;
}

TEST_P(QuantConformance, EncodesEveryElementLikeRef) {
  const RowKernels& ref = *impls().back().kernels;
  for (const Tensor& x : all_elements()) {
    const int64_t n = x.numel();
    for (const Encode how : kEncodes) {
      for (const float f : {1.0f, 0.5f, 0.3f, 1e-3f, 7e4f}) {
        const float zero_point = 5.0f;
        std::vector<uint8_t> expected(static_cast<size_t>(n));
        std::vector<uint8_t> actual(static_cast<size_t>(n));
        ref.encode({how, x.raw(), x.dtype(), n, n, &f, &zero_point, expected.data()});
        kernels_.encode({how, x.raw(), x.dtype(), n, n, &f, &zero_point, actual.data()});
        const auto codes = [how](std::vector<uint8_t>& bytes) {
          const auto size = static_cast<int64_t>(bytes.size());
          return Tensor::borrow(bytes.data(), {size},
                                code_of(how) == Code::kE4M3 ? DType::kF8E4M3 : DType::kU8);
        };
        expect_same(codes(actual), codes(expected),
                    "encode " + std::to_string(static_cast<int>(how)) + " of " +
                        std::string(name(x.dtype())) + " by " + std::to_string(f));
      }
    }
  }
}

TEST_P(QuantConformance, WidensEveryElementLikeRef) {
  for (const Tensor& x : all_elements()) {
    for (const int64_t n : {x.numel(), int64_t{13}, int64_t{1}, int64_t{0}}) {
      const Tensor expected = Tensor::zeros({n}, DType::kF32);
      const Tensor actual = Tensor::zeros({n}, DType::kF32);
      impls().back().kernels->widen(x.raw(), x.dtype(), n, expected.data<float>());
      kernels_.widen(x.raw(), x.dtype(), n, actual.data<float>());
      expect_same(actual, expected, std::string(name(x.dtype())));
    }
  }
}

TEST_P(QuantConformance, DecodesEveryCodeLikeRef) {
  const Tensor codes = Tensor::empty({768}, DType::kU8);
  for (int64_t i = 0; i < codes.numel(); ++i) {
    // All bytes come first, then patterns that put every code in every place of a packed group.
    codes.data<uint8_t>()[i] = static_cast<uint8_t>(i < 256 ? i : i * 37 + i / 256);
  }
  const float scales[] = {1.0f,
                          0.3f,
                          -2.0f,
                          0.0f,
                          1e30f,
                          1e-38f,
                          std::ldexp(1.0f, -127),
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};
  for (const Code code : kCodes) {
    const int64_t n = codes.numel() * 8 / code_bits(code);
    const bool is_integer = code == Code::kI8 || code == Code::kU4;
    for (const float scale : scales) {
      for (const float zero_point : {0.0f, 11.0f, -100.0f}) {
        if (zero_point != 0.0f && !is_integer) {
          continue;
        }
        for (const DType dtype : kFloatTypes) {
          const Tensor expected = Tensor::zeros({n}, dtype);
          const Tensor actual = Tensor::zeros({n}, dtype);
          const uint8_t* bytes = codes.data<uint8_t>();
          const float* zero_points = is_integer ? &zero_point : nullptr;
          impls().back().kernels->decode(
              {code, bytes, n, n, &scale, zero_points, expected.raw(), dtype});
          kernels_.decode({code, bytes, n, n, &scale, zero_points, actual.raw(), dtype});
          expect_same(actual, expected, "code " + std::to_string(static_cast<int>(code)));
        }
      }
    }
  }
}

// Bytes after the outputs must stay unchanged, whatever the length of the last block.
TEST_P(QuantConformance, WritesNothingPastARow) {
  const Tensor x = filled(1, 80, DType::kF32, Fill::kNormal, 5);
  const std::vector<float> ones(8, 1.0f);
  for (int64_t n = 0; n <= 80; n += 4) {
    for (const Encode how : kEncodes) {
      const int64_t num_bytes = n * code_bits(code_of(how)) / 8;
      std::vector<uint8_t> codes(128, 0xa5);
      kernels_.encode({how, x.raw(), DType::kF32, n, 12, ones.data(), ones.data(), codes.data()});
      for (size_t i = static_cast<size_t>(num_bytes); i < codes.size(); ++i) {
        ASSERT_EQ(codes[i], 0xa5) << n;
      }
      for (const DType dtype : kFloatTypes) {
        const Tensor out = Tensor::empty({128}, dtype);
        std::memset(out.raw(), 0x5a, static_cast<size_t>(out.nbytes()));
        kernels_.decode(
            {code_of(how), codes.data(), n, 12, ones.data(), nullptr, out.raw(), dtype});
        for (int64_t i = n * bits(dtype) / 8; i < out.nbytes(); ++i) {
          ASSERT_EQ(static_cast<int>(out.bytes()[i]), 0x5a) << n;
        }
      }
    }
  }
}

}  // namespace moebius::quant
