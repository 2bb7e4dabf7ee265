// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests each format on inputs that are small enough to work out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "moebius/error.h"
#include "moebius/quantize.h"
#include "tests/quant/tensors.h"

namespace moebius {
namespace {

using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

Quantized with_static_scale(const Tensor& x, const QuantizeSpec& spec, float scale) {
  Quantized q = allocate_quantized(spec, x.dim(0), x.dim(1));
  quantize(x, spec, q, Stream{}, tensor_of({1}, {scale}));
  return q;
}

Quantized with_global_scale(const Tensor& x, float scale) {
  const QuantizeSpec spec{QuantFormat::kNvfp4, {1, 16}};
  Quantized q = allocate_quantized(spec, x.dim(0), x.dim(1));
  quantize(x, spec, q, Stream{}, {}, tensor_of({1}, {scale}));
  return q;
}

// A row of `values`, padded with zeros to n elements.
Tensor padded_row(Floats values, size_t n) {
  values.resize(n);
  return row_of(values);
}

Bytes first(const Bytes& bytes, size_t n) {
  return {bytes.begin(), bytes.begin() + static_cast<int64_t>(n)};
}

// ---- fp8

TEST(Fp8PerTensor, StaticScaleMultipliesByTheReciprocalAndSaturates) {
  const QuantizeSpec spec{QuantFormat::kFp8, GroupShape::per_tensor()};
  // x / 2: 1, 0.5, -1.5, the ties 17 -> 16 and 19 -> 20, beyond 448, infinities, NaN -> 448
  const Tensor x = row_of({2, 1, -3, 34, 38, 1000, kInf, -kInf, kNan, -0.0f});
  const Quantized q = with_static_scale(x, spec, 2.0f);
  EXPECT_EQ(raw_bytes(q.values),
            (Bytes{0x38, 0x30, 0xbc, 0x58, 0x5a, 0x7e, 0x7e, 0xfe, 0x7e, 0x80}));
  EXPECT_EQ(floats(q.scale), Floats{2});
}

TEST(Fp8PerTensor, DynamicScaleIsTheMaximumOver448) {
  const QuantizeSpec spec{QuantFormat::kFp8, GroupShape::per_tensor()};
  const Quantized q = quantize(tensor_of({2, 2}, {0, 448, 2, -896}), spec);
  EXPECT_EQ(floats(q.scale), Floats{2});
  EXPECT_EQ(raw_bytes(q.values), (Bytes{0x00, 0x76, 0x38, 0xfe}));
  EXPECT_EQ(dequantized(q, spec), (Floats{0, 448, 2, -896}));
}

TEST(Fp8PerTensor, AllZeroInputHasScaleZeroAndTheLargestCode) {
  const QuantizeSpec spec{QuantFormat::kFp8, GroupShape::per_tensor()};
  const Quantized q = quantize(row_of({0, 0, -0.0f}), spec);
  EXPECT_EQ(floats(q.scale), Floats{0});
  EXPECT_EQ(raw_bytes(q.values), (Bytes{0x7e, 0x7e, 0x7e}));  // 0 * (1 / 0) is NaN
  EXPECT_EQ(dequantized(q, spec), (Floats{0, 0, 0}));
}

// 0x1.a92492p-9 lies next to a tie: x * (1 / s) rounds below it and x / s onto it.
TEST(Fp8, PerTensorMultipliesWherePerTokenDivides) {
  const Tensor x = row_of({3.0f, 0x1.a92492p-9f});
  const Quantized tensor = quantize(x, QuantizeSpec{QuantFormat::kFp8, GroupShape::per_tensor()});
  const Quantized token = quantize(x, QuantizeSpec{QuantFormat::kFp8, GroupShape::per_token()});
  const Quantized group = quantize(x, QuantizeSpec{QuantFormat::kFp8, {1, 2}});
  EXPECT_EQ(floats(tensor.scale), floats(token.scale));
  EXPECT_EQ(raw_bytes(tensor.values), (Bytes{0x7e, 0x2f}));
  EXPECT_EQ(raw_bytes(token.values), (Bytes{0x7e, 0x30}));
  EXPECT_EQ(raw_bytes(group.values), (Bytes{0x7e, 0x30}));
}

TEST(Fp8PerToken, ScaleHasAFloor) {
  const QuantizeSpec spec{QuantFormat::kFp8, GroupShape::per_token()};
  const Quantized q = quantize(tensor_of({3, 2}, {0, 0, 1e-6f, 0, 896, -2}), spec);
  const float floor = 1.0f / (448.0f * 512.0f);
  EXPECT_EQ(floats(q.scale), (Floats{floor, floor, 2}));
  // 1e-6 / floor = 0.2294 lies nearest to 1.875 / 8.
  EXPECT_EQ(raw_bytes(q.values), (Bytes{0x00, 0x00, 0x27, 0x00, 0x7e, 0xb8}));
}

TEST(Fp8Blocks, EveryGroupHasAScaleOfItsOwn) {
  const QuantizeSpec spec{QuantFormat::kFp8, {1, 4}};
  // The last group is ragged.
  const Quantized q = quantize(row_of({448, 1, 0, -2, 0, 0, 0, 0, 896, 2}), spec);
  EXPECT_EQ(floats(q.scale), (Floats{1, 1e-10f / 448.0f, 2}));
  EXPECT_EQ(raw_bytes(q.values),
            (Bytes{0x7e, 0x38, 0x00, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x7e, 0x38}));
}

TEST(Fp8Blocks, BlocksSpanRowsAndEdgesAreRagged) {
  const QuantizeSpec spec{QuantFormat::kFp8, {2, 2}};
  const Quantized q = quantize(tensor_of({3, 3}, {1, 2, 448,   //
                                                  896, 4, -1,  //
                                                  0, 448, -1792}),
                               spec);
  EXPECT_EQ(q.scale.shape(), (Shape{2, 2}));
  EXPECT_EQ(floats(q.scale), (Floats{2, 1, 1, 4}));
  EXPECT_EQ(raw_bytes(q.values), (Bytes{0x30, 0x38, 0x7e, 0x7e, 0x40, 0xb8, 0x00, 0x7e, 0xfe}));
}

TEST(Fp8Blocks, PowerOfTwoScalesRoundUp) {
  QuantizeSpec spec{QuantFormat::kFp8, {1, 2}};
  spec.power_of_two_scale = true;
  const float above = std::nextafter(1792.0f, kInf);
  const Quantized q = quantize(row_of({500, 0, 1792, 0, above, 0, 0, 0, 448, 1}), spec);
  EXPECT_EQ(floats(q.scale), (Floats{2, 4, 8, std::ldexp(1.0f, -33), 1}));
  EXPECT_EQ(raw_bytes(q.values),
            (Bytes{0x78, 0x00, 0x7e, 0x00, 0x76, 0x00, 0x00, 0x00, 0x7e, 0x38}));
}

TEST(Fp8Blocks, PowerOfTwoScalesAreExactAtEveryExponent) {
  QuantizeSpec spec{QuantFormat::kFp8, {1, 1}};
  spec.power_of_two_scale = true;
  for (int e = -20; e < 110; ++e) {
    const float exact = std::ldexp(448.0f, e);
    const Quantized q = quantize(row_of({exact, std::nextafter(exact, kInf)}), spec);
    // The next float over 448 * 2^e still gives 2^e where the quotient rounds down to it.
    const float quotient = std::nextafter(exact, kInf) / 448.0f;
    const float expected = quotient > std::ldexp(1.0f, e) ? std::ldexp(1.0f, e + 1) : quotient;
    EXPECT_EQ(floats(q.scale), (Floats{std::ldexp(1.0f, e), expected})) << e;
  }
}

// ---- int8: three roundings

TEST(Int8PerTensor, RoundsHalvesToEven) {
  const QuantizeSpec spec{QuantFormat::kInt8, GroupShape::per_tensor()};
  const Tensor x = row_of({0.25f, 0.75f, 1.25f, -0.25f, -0.75f, 100, -100, kNan, kInf, -kInf});
  const Quantized q = with_static_scale(x, spec, 0.5f);
  EXPECT_EQ(floats(q.values), (Floats{0, 2, 2, 0, -2, 127, -128, 0, 127, -128}));
}

TEST(Int8PerTensor, DynamicScaleIsTheMaximumOver127WithAFloor) {
  const QuantizeSpec spec{QuantFormat::kInt8, GroupShape::per_tensor()};
  const Quantized q = quantize(row_of({-254, 1, 3, 5}), spec);
  EXPECT_EQ(floats(q.scale), Floats{2});
  EXPECT_EQ(floats(q.values), (Floats{-127, 0, 2, 2}));
  const Quantized zero = quantize(row_of({0, 0}), spec);
  EXPECT_EQ(floats(zero.scale), Floats{1e-10f});
  EXPECT_EQ(floats(zero.values), (Floats{0, 0}));
}

TEST(Int8PerToken, RoundsHalvesAwayFromZero) {
  const QuantizeSpec spec{QuantFormat::kInt8, GroupShape::per_token()};
  const Quantized q =
      quantize(tensor_of({2, 7}, {127, 0.5f, -0.5f, 2.5f, -2.5f, 1.4999999f, kNan,  //
                                  0, 0, 0, 0, 0, 0, 0}),
               spec);
  EXPECT_EQ(floats(q.scale), (Floats{1, 1e-10f / 127.0f}));
  EXPECT_EQ(floats(q.values), (Floats{127, 1, -1, 3, -3, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

// The float below 0.5: adding 0.5 to it and truncating would give 1.
TEST(Int8PerToken, TheFloatBelowAHalfRoundsDown) {
  const QuantizeSpec spec{QuantFormat::kInt8, GroupShape::per_token()};
  const float below = std::nextafter(0.5f, 0.0f);
  const Quantized q = quantize(row_of({127, below, -below}), spec);
  EXPECT_EQ(floats(q.values), (Floats{127, 0, 0}));
}

TEST(Int8Groups, TruncateTowardZero) {
  const QuantizeSpec spec{QuantFormat::kInt8, {1, 4}};
  const Quantized q = quantize(row_of({127, 126.9f, -0.9f, -5.99f, -254, 3, 1}), spec);
  EXPECT_EQ(floats(q.scale), (Floats{1, 2}));
  EXPECT_EQ(floats(q.values), (Floats{127, 126, 0, -5, -127, 1, 0}));
}

// ---- int4

TEST(Int4, SymmetricCodesStandAround8) {
  const QuantizeSpec spec{QuantFormat::kInt4, {1, 4}};
  const Quantized q = quantize(row_of({7, -8, 3.5f, 0.5f, 14, 2, -1, 1, 0, 0}), spec);
  EXPECT_EQ(floats(q.scale), (Floats{1, 2, 1e-10f}));
  // 15 0 | 12 8 | 15 9 | 8 8 (-0.5 -> -0, 0.5 -> 0) | 8 8, low nibble first
  EXPECT_EQ(raw_bytes(q.values), (Bytes{0x0f, 0x8c, 0x9f, 0x88, 0x88}));
  EXPECT_EQ(dequantized(q, spec), (Floats{7, -8, 4, 0, 14, 2, 0, 0, 0, 0}));
  EXPECT_FALSE(q.zero_point.defined());
}

TEST(Int4, AsymmetricUsesTheRangeTogetherWithZero) {
  const QuantizeSpec spec{QuantFormat::kInt4, {1, 4}, false, /*asymmetric=*/true};
  const Quantized q = quantize(tensor_of({2, 8}, {0, 15, 7.5f, 1.5f, -3, 12, 0, 1,  //
                                                  30, 28, 29, 27, -15, -15, -15, -15}),
                               spec);
  EXPECT_EQ(floats(q.scale), (Floats{1, 1, 2, 1}));
  EXPECT_EQ(raw_bytes(q.zero_point), (Bytes{0, 3, 0, 15}));
  EXPECT_EQ(raw_bytes(q.values), (Bytes{0xf0, 0x28, 0xf0, 0x43, 0xef, 0xee, 0x00, 0x00}));
  EXPECT_EQ(dequantized(q, spec),
            (Floats{0, 15, 8, 2, -3, 12, 0, 1, 30, 28, 28, 28, -15, -15, -15, -15}));
}

TEST(Int4, AsymmetricScaleHasAFloor) {
  QuantizeSpec spec{QuantFormat::kInt4, GroupShape::per_token()};
  spec.asymmetric = true;
  const Quantized q = quantize(row_of({0, 0}), spec);
  EXPECT_EQ(floats(q.scale), Floats{1e-5f / 15.0f});
  EXPECT_EQ(raw_bytes(q.values), Bytes{0x00});
}

// ---- mx

const Floats kE2M1Ties = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 6};
const Floats kE2M1Rounded = {0, 1, 1, 2, 2, 4, 4, 6};

TEST(Mxfp4, TiesGoToEvenCodes) {
  const QuantizeSpec spec{QuantFormat::kMxfp4, {1, 32}};
  Floats values = kE2M1Ties;
  for (const float v : kE2M1Ties) {
    values.push_back(-v);
  }
  values.push_back(std::nextafter(5.0f, 6.0f));
  const Quantized q = quantize(padded_row(values, 32), spec);
  EXPECT_EQ(raw_bytes(q.scale), Bytes{127});
  EXPECT_EQ(first(raw_bytes(q.values), 9),
            (Bytes{0x20, 0x42, 0x64, 0x76, 0xa8, 0xca, 0xec, 0xfe, 0x07}));
  const Floats back = dequantized(q, spec);
  for (size_t i = 0; i < kE2M1Ties.size(); ++i) {
    EXPECT_EQ(back[i], kE2M1Rounded[i]);
    EXPECT_EQ(back[i + 8], -kE2M1Rounded[i]);
  }
  EXPECT_EQ(back[16], 6);
}

struct ScaleCase {
  QuantFormat format;
  float absmax;
  uint8_t code;
};

TEST(MxScales, EvenRuleRoundsTheMaximumToTheElementsMantissa) {
  const float denormal = std::numeric_limits<float>::denorm_min();
  const ScaleCase cases[] = {
      // mxfp4 has 1 mantissa bit, so 1.75 and more rounds up to 2; the largest exponent is 2.
      {QuantFormat::kMxfp4, 6.0f, 127},
      {QuantFormat::kMxfp4, std::nextafter(7.0f, 0.0f), 127},
      {QuantFormat::kMxfp4, 7.0f, 128},
      {QuantFormat::kMxfp4, 8.0f, 128},
      {QuantFormat::kMxfp4, 1.0f, 125},
      {QuantFormat::kMxfp4, 0.0f, 0},
      {QuantFormat::kMxfp4, denormal, 0},
      {QuantFormat::kMxfp4, std::ldexp(1.0f, -124), 1},
      {QuantFormat::kMxfp4, std::numeric_limits<float>::max(), 253},
      {QuantFormat::kMxfp4, kInf, 253},
      // e3m2 rounds 1.875 and more up to 2; the largest exponent is 4.
      {QuantFormat::kMxfp6E3M2, 28.0f, 127},
      {QuantFormat::kMxfp6E3M2, std::nextafter(30.0f, 0.0f), 127},
      {QuantFormat::kMxfp6E3M2, 30.0f, 128},
      {QuantFormat::kMxfp6E3M2, 1.0f, 123},
      // e2m3 rounds 1.9375 and more up to 2; the largest exponent is 2.
      {QuantFormat::kMxfp6E2M3, 7.5f, 127},
      {QuantFormat::kMxfp6E2M3, std::nextafter(7.75f, 0.0f), 127},
      {QuantFormat::kMxfp6E2M3, 7.75f, 128},
      // mxfp8 takes the exponent of the maximum, but at least that of the smallest normal float.
      {QuantFormat::kMxfp8, 1.0f, 127},
      {QuantFormat::kMxfp8, 448.0f, 135},
      {QuantFormat::kMxfp8, std::nextafter(2.0f, 0.0f), 127},
      {QuantFormat::kMxfp8, 0.0f, 1},
      {QuantFormat::kMxfp8, denormal, 1},
      {QuantFormat::kMxfp8, std::numeric_limits<float>::max(), 254},
      {QuantFormat::kMxfp8, kInf, 254},
  };
  for (const ScaleCase& c : cases) {
    const Quantized q =
        quantize(padded_row({0.0f, -c.absmax}, 32), QuantizeSpec{c.format, {1, 32}});
    EXPECT_EQ(raw_bytes(q.scale), Bytes{c.code}) << name(c.format) << " " << c.absmax;
  }
}

TEST(MxScales, HalfPrecisionInputsGiveTheScaleOfTheSameFloats) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const QuantFormat format : {QuantFormat::kMxfp4, QuantFormat::kMxfp6E3M2,
                                     QuantFormat::kMxfp6E2M3, QuantFormat::kMxfp8}) {
      const Tensor x = convert(random_matrix(3, 64, DType::kF32, 5), dtype);
      const Quantized half = quantize(x, QuantizeSpec{format, {1, 32}});
      const Quantized full = quantize(convert(x, DType::kF32), QuantizeSpec{format, {1, 32}});
      EXPECT_EQ(raw_bytes(half.scale), raw_bytes(full.scale));
      EXPECT_EQ(raw_bytes(half.values), raw_bytes(full.values));
    }
  }
}

TEST(Mxfp4, AZeroGroupIsZero) {
  const QuantizeSpec spec{QuantFormat::kMxfp4, {1, 32}};
  const Quantized q = quantize(padded_row({}, 64), spec);
  EXPECT_EQ(raw_bytes(q.scale), (Bytes{0, 0}));
  EXPECT_EQ(raw_bytes(q.values), Bytes(32, 0));
  EXPECT_EQ(dequantized(q, spec), Floats(64, 0));
}

TEST(Mxfp4, SaturatesAboveTheRoundedMaximum) {
  const QuantizeSpec spec{QuantFormat::kMxfp4, {1, 32}};
  const Quantized q = quantize(padded_row({6.9f, -6.9f, kNan, 3}, 32), spec);
  EXPECT_EQ(raw_bytes(q.scale), Bytes{127});
  EXPECT_EQ(first(raw_bytes(q.values), 2), (Bytes{0xf7, 0x57}));
}

TEST(Mxfp6, PacksFourCodesInThreeBytes) {
  struct Row {
    QuantFormat format;
    Floats values;
    Bytes codes;
    Floats back;
  };
  const Row rows[] = {
      // Codes 0x1f, 0x2c (-1), 0x01 (1/16), 0x38 (-8), then 29 -> 28 and the tie 1.125 -> 1.
      {QuantFormat::kMxfp6E3M2,
       {28, -1, 0.0625f, -8, 29, 1.125f},
       {0x1f, 0x1b, 0xe0, 0x1f, 0x03, 0x00},
       {28, -1, 0.0625f, -8, 28, 1}},
      // Codes 0x1f, 0x28 (-1), 0x01 (1/8), 0x30 (-2), then the ties 1.0625 -> 1 and 0.0625 -> 0.
      {QuantFormat::kMxfp6E2M3,
       {7.5f, -1, 0.125f, -2, 1.0625f, 0.0625f},
       {0x1f, 0x1a, 0xc0, 0x08, 0x00, 0x00},
       {7.5f, -1, 0.125f, -2, 1, 0}},
  };
  for (const Row& row : rows) {
    const QuantizeSpec spec{row.format, {1, 32}};
    const Quantized q = quantize(padded_row(row.values, 32), spec);
    EXPECT_EQ(raw_bytes(q.scale), Bytes{127});
    EXPECT_EQ(first(raw_bytes(q.values), 6), row.codes);
    const Floats back = dequantized(q, spec);
    EXPECT_EQ(Floats(back.begin(), back.begin() + 6), row.back);
  }
}

TEST(Mxfp8, UsesTheRangeUpToTwoAndKeepsNan) {
  const QuantizeSpec spec{QuantFormat::kMxfp8, {1, 32}};
  const Quantized q = quantize(padded_row({448, -256, 1, kNan}, 32), spec);
  EXPECT_EQ(raw_bytes(q.scale), Bytes{135});
  EXPECT_EQ(first(raw_bytes(q.values), 4), (Bytes{0x3e, 0xb8, 0x02, 0x7f}));
  const Quantized infinite = quantize(padded_row({-kInf, 1}, 32), spec);
  EXPECT_EQ(raw_bytes(infinite.scale), Bytes{254});
  EXPECT_EQ(first(raw_bytes(infinite.values), 2), (Bytes{0xff, 0x00}));
}

// ---- nvfp4

TEST(Nvfp4, GroupScaleIsE4m3OfTheMaximumOverSix) {
  const QuantizeSpec spec{QuantFormat::kNvfp4, {1, 16}};
  Floats values(64, 0.0f);
  for (size_t i = 0; i < kE2M1Ties.size(); ++i) {
    values[i] = kE2M1Ties[i];
    values[16 + i] = -kE2M1Ties[i] / 2;
  }
  values[48] = 1e5f;  // 1e5 / 6 is beyond 448
  values[49] = 449.0f * 6;
  const Quantized q = with_global_scale(row_of(values), 1.0f);
  EXPECT_EQ(raw_bytes(q.scale), (Bytes{0x38, 0x30, 0x00, 0x7e}));
  EXPECT_EQ(floats(q.global_scale), Floats{1});
  EXPECT_EQ(first(raw_bytes(q.values), 4), (Bytes{0x20, 0x42, 0x64, 0x76}));
  const Bytes bytes = raw_bytes(q.values);
  EXPECT_EQ(Bytes(bytes.begin() + 8, bytes.begin() + 12), (Bytes{0xa8, 0xca, 0xec, 0xfe}));
  EXPECT_EQ(Bytes(bytes.begin() + 16, bytes.begin() + 24), Bytes(8, 0));  // the zero group
  EXPECT_EQ(bytes[24], 0x77);
  const Floats back = dequantized(q, spec);
  for (size_t i = 0; i < kE2M1Ties.size(); ++i) {
    EXPECT_EQ(back[i], kE2M1Rounded[i]);
    EXPECT_EQ(back[16 + i], -kE2M1Rounded[i] / 2);
  }
  EXPECT_EQ(back[48], 448.0f * 6);
}

TEST(Nvfp4, GroupScaleThatRoundsToZeroGivesZeros) {
  // 6e-3 / 6 is under half of the smallest e4m3, 2^-10.
  const Quantized q = with_global_scale(padded_row({5e-3f, -5e-3f}, 16), 1.0f);
  EXPECT_EQ(raw_bytes(q.scale), Bytes{0x00});
  EXPECT_EQ(first(raw_bytes(q.values), 1), Bytes{0x80});
}

// The scales of a row whose largest element is 6.
void expect_scales(const QuantizeSpec& spec, float global_scale, uint8_t block_scale) {
  const Quantized q = quantize(padded_row({6, -3}, 32), spec);
  EXPECT_EQ(floats(q.global_scale), Floats{global_scale});
  EXPECT_EQ(raw_bytes(q.scale), (Bytes{block_scale, 0x00}));
  EXPECT_EQ(first(raw_bytes(q.values), 1), Bytes{0xd7});
  EXPECT_EQ(dequantized(q, spec)[0], 6);
  EXPECT_EQ(floats(quantize(padded_row({}, 16), spec).global_scale), Floats{1});
}

TEST(Nvfp4, GlobalScaleDefaultsToTheTensorsMaximum) {
  expect_scales({QuantFormat::kNvfp4, {1, 16}}, 448, 0x7e);
}

constexpr QuantizeSpec kNvfp4Rows{
    .format = QuantFormat::kNvfp4, .group = {1, 16}, .global_scale_per_row = true};

// 448 * 6 / 6 = 448, and the largest power of two below is 256.
TEST(Nvfp4Rows, GlobalScaleIsThePowerOfTwoBelowThatOfTheMaximum) {
  expect_scales(kNvfp4Rows, 256, 0x78);
}

TEST(Nvfp4Rows, ARowDependsOnNoOther) {
  const Floats magnitudes = {1e-3f, 1.0f, 1e30f};
  Floats values(96);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 13) * magnitudes[i / 32];
  }
  const Tensor x = tensor_of({3, 32}, values);
  const Quantized all = quantize(x, kNvfp4Rows);
  EXPECT_EQ(all.global_scale.shape(), Shape{3});
  const Floats back = dequantized(all, kNvfp4Rows);
  for (int64_t row = 0; row < 3; ++row) {
    const Quantized alone = quantize(x.slice(row, row + 1), kNvfp4Rows);
    EXPECT_EQ(raw_bytes(alone.values), raw_bytes(all.values.slice(row, row + 1)));
    EXPECT_EQ(raw_bytes(alone.scale), raw_bytes(all.scale.slice(row, row + 1)));
    EXPECT_EQ(floats(alone.global_scale)[0], floats(all.global_scale)[static_cast<size_t>(row)]);
    for (size_t i = 0; i < 32; ++i) {
      const size_t at = static_cast<size_t>(row) * 32 + i;
      EXPECT_NEAR(back[at], values[at], 0.18f * 12 * magnitudes[static_cast<size_t>(row)]);
    }
  }
}

// Codes are the same whatever power of two a row is multiplied by, to the ends of f32.
TEST(Nvfp4Rows, MagnitudesDoNotMatter) {
  const Floats base = {1.0f, -0.3f, 0.7f, 1.9f};
  const Quantized expected = quantize(padded_row(base, 16), kNvfp4Rows);
  for (const float factor : {0x1p-88f, 0x1p-10f, 0x1p14f, 0x1p126f}) {
    Floats scaled = base;
    for (float& v : scaled) {
      v *= factor;
    }
    const Quantized q = quantize(padded_row(scaled, 16), kNvfp4Rows);
    EXPECT_EQ(raw_bytes(q.values), raw_bytes(expected.values)) << factor;
    EXPECT_EQ(raw_bytes(q.scale), raw_bytes(expected.scale)) << factor;
    EXPECT_EQ(floats(q.global_scale)[0], floats(expected.global_scale)[0] / factor) << factor;
  }
  for (const float tiny : {1e-45f, 1e-38f, 1e-30f}) {
    const Quantized q = quantize(padded_row({tiny, -tiny}, 16), kNvfp4Rows);
    EXPECT_EQ(floats(q.global_scale), Floats{0x1p100f});
    EXPECT_LE(std::abs(dequantized(q, kNvfp4Rows)[0]), 1.2f * tiny);
  }
}

TEST(Nvfp4Rows, TakesNoOtherGlobalScaleAndNoOtherFormat) {
  const Tensor x = padded_row({1}, 16);
  Quantized q = allocate_quantized(kNvfp4Rows, 1, 16);
  EXPECT_THROW(quantize(x, kNvfp4Rows, q, Stream{}, {}, tensor_of({1}, {1.0f})), InvalidArgument);
  QuantizeSpec mx = kNvfp4Rows;
  mx.format = QuantFormat::kMxfp4;
  mx.group = {1, 32};
  EXPECT_EQ(quantize_supported(mx, 1, 32).reason,
            "a global scale per row of mxfp4, expected nvfp4");
}

}  // namespace
}  // namespace moebius
