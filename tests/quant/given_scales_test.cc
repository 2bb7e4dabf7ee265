// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows whose scales are given: every code by the plain formula, for every implementation of the
// quant stage on CPUs.
#include "quant/given_scales.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/impls.h"
#include "tests/quant/forced_quant.h"

namespace moebius::quant {
namespace {

constexpr int64_t kRows = 19;

uint8_t plain_code(QuantFormat format, float value, float scale) {
  if (format == QuantFormat::kFp8) {
    return F8E4M3(std::clamp(value / scale, -448.0f, 448.0f)).bits;
  }
  const float code = std::round(std::clamp(value * (1.0f / scale), -128.0f, 127.0f));
  return static_cast<uint8_t>(static_cast<int8_t>(code));
}

float plain_value(QuantFormat format, uint8_t code, float scale) {
  if (format == QuantFormat::kInt8) {
    return static_cast<float>(static_cast<int8_t>(code)) * scale;
  }
  F8E4M3 value;
  value.bits = code;
  return static_cast<float>(value) * scale;
}

void check(QuantFormat format, DType dtype, int64_t k) {
  std::mt19937 random(7);
  std::normal_distribution<float> bell(0.0f, 2.0f);
  const Tensor x = Tensor::empty({kRows, k}, dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    set_float(x, i, i % 97 == 5 ? 1000.0f : bell(random));  // some are clamped
  }
  std::vector<float> scales(kRows);
  for (size_t r = 0; r < scales.size(); ++r) {
    scales[r] = r % 4 == 0 ? 0.25f : 0.01f * static_cast<float>(r + 1);  // with ties
  }
  const QuantizeSpec spec{.format = format, .group = GroupShape::per_token()};
  const Tensor codes = Tensor::empty({kRows, k}, storage_dtype(format));
  const Tensor values = Tensor::empty({kRows, k}, DType::kF32);
  const Stream stream = Stream::cpu(2);
  quantize_given(x, spec, scales.data(), codes, stream);
  quantize_dequantize_given(x, spec, scales.data(), values, stream);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float scale = scales[static_cast<size_t>(i / k)];
    const uint8_t code = static_cast<const uint8_t*>(codes.raw())[i];
    ASSERT_EQ(code, plain_code(format, get_float(x, i), scale)) << i << " of " << k;
    ASSERT_EQ(values.data<float>()[i], plain_value(format, code, scale)) << i << " of " << k;
  }
}

TEST(GivenScales, CodesAndValuesAreThoseOfThePlainFormula) {
  for (const Impl& impl : impls()) {
    if (impl.kernels == nullptr || !impl.supports(cpu_features()).ok) {
      continue;
    }
    const ForcedQuant forced(impl.name);
    for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const int64_t k : {1, 31, 64, 1024, 2500}) {
          SCOPED_TRACE(std::string(impl.name) + " " + std::string(name(format)) + " " +
                       std::string(name(dtype)));
          check(format, dtype, k);
        }
      }
    }
  }
}

// A scale that was taken from the row gives the codes of quantize().
TEST(GivenScales, OfTheRowItselfGiveWhatQuantizeGives) {
  const QuantizeSpec spec{.format = QuantFormat::kFp8, .group = GroupShape::per_token()};
  const Tensor x = Tensor::empty({5, 300}, DType::kBF16);
  std::mt19937 random(9);
  for (int64_t i = 0; i < x.numel(); ++i) {
    set_float(x, i, static_cast<float>(random() % 2001) * 0.01f - 10.0f);
  }
  const Quantized q = quantize(x, spec);
  const Tensor codes = Tensor::empty(x.shape(), DType::kF8E4M3);
  quantize_given(x, spec, q.scale.data<float>(), codes, Stream::cpu(1));
  EXPECT_EQ(std::memcmp(codes.raw(), q.values.raw(), static_cast<size_t>(codes.nbytes())), 0);
}

}  // namespace
}  // namespace moebius::quant
