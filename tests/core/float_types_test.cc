// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares every code of the small floats with values computed in double from the formats'
// definitions, and rounding with the nearest of those values.
#include "moebius/float_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "moebius/dtype.h"
#include "tests/by_name.h"

namespace moebius {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A format as its standard defines it: field widths, bias, and the meaning of codes past
// `max_code`.
struct Format {
  std::string name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  uint32_t max_code;                                  // largest finite magnitude
  bool has_infinity;                                  // at max_code + 1
  uint32_t nan_code;                                  // what NaN encodes to; 0: the format has none
  std::function<uint32_t(float)> encode;              // saturating
  std::function<uint32_t(float)> encode_overflowing;  // empty: the format only saturates
  std::function<float(uint32_t)> decode;

  uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }

  // The value of a magnitude if the exponent range had no end.
  double value(uint32_t code) const {
    const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const double fraction = mantissa / std::exp2(mantissa_bits);
    return exponent == 0 ? fraction * std::exp2(1 - bias)
                         : (1.0 + fraction) * std::exp2(exponent - bias);
  }

  // The code of the magnitude nearest to x >= 0, ties to the even code; max_code + 1 means
  // overflow.
  uint32_t nearest(double x) const {
    uint32_t low = 0;
    uint32_t high = max_code + 1;
    if (x >= value(high)) {
      return high;
    }
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (value(middle) <= x ? low : high) = middle;
    }
    const double below = x - value(low);
    const double above = value(high) - x;
    return below < above || (below == above && low % 2 == 0) ? low : high;
  }
};

template <typename T>
float decode(uint32_t code) {
  T value;
  value.bits = static_cast<decltype(value.bits)>(code);
  return static_cast<float>(value);
}
template <typename T>
uint32_t encode(float x) {
  return T(x).bits;
}
template <typename T>
uint32_t encode_overflowing(float x) {
  return T::overflowing(x).bits;
}

std::vector<Format> formats() {
  const auto packed = [](float (*to_float)(uint8_t)) {
    return [to_float](uint32_t code) { return to_float(static_cast<uint8_t>(code)); };
  };
  return {
      {"e4m3", 4, 3, 7, 0x7e, false, 0x7f, encode<F8E4M3>, encode_overflowing<F8E4M3>,
       decode<F8E4M3>},
      {"e5m2", 5, 2, 15, 0x7b, true, 0x7e, encode<F8E5M2>, encode_overflowing<F8E5M2>,
       decode<F8E5M2>},
      {"e2m1", 2, 1, 1, 0x7, false, 0, e2m1_from_float, {}, packed(e2m1_to_float)},
      {"e3m2", 3, 2, 3, 0x1f, false, 0, e3m2_from_float, {}, packed(e3m2_to_float)},
      {"e2m3", 2, 3, 1, 0x1f, false, 0, e2m3_from_float, {}, packed(e2m3_to_float)},
      {"f16", 5, 10, 15, 0x7bff, true, 0x7e00, {}, encode<Float16>, decode<Float16>},
      {"bf16", 8, 7, 127, 0x7f7f, true, 0x7fc0, {}, encode<BFloat16>, decode<BFloat16>},
  };
}

class SmallFloat : public ::testing::TestWithParam<Format> {};

TEST_P(SmallFloat, EveryCodeDecodesToItsDefinition) {
  const Format& f = GetParam();
  for (uint32_t code = 0; code < 2 * f.sign_bit(); ++code) {
    const uint32_t magnitude = code & (f.sign_bit() - 1);
    const bool negative = (code & f.sign_bit()) != 0;
    const float actual = f.decode(code);
    if (magnitude <= f.max_code) {
      EXPECT_EQ(static_cast<double>(actual), negative ? -f.value(magnitude) : f.value(magnitude))
          << "code " << code;
    } else if (f.has_infinity && magnitude == f.max_code + 1) {
      EXPECT_EQ(actual, negative ? -kInf : kInf);
    } else {
      EXPECT_TRUE(std::isnan(actual)) << "code " << code;
    }
    EXPECT_EQ(std::signbit(actual), negative) << "code " << code;
  }
}

TEST_P(SmallFloat, EveryFiniteCodeSurvivesARoundTrip) {
  const Format& f = GetParam();
  for (uint32_t magnitude = 0; magnitude <= f.max_code; ++magnitude) {
    for (const uint32_t code : {magnitude, magnitude | f.sign_bit()}) {
      if (f.encode) {
        EXPECT_EQ(f.encode(f.decode(code)), code);
      }
      if (f.encode_overflowing) {
        EXPECT_EQ(f.encode_overflowing(f.decode(code)), code);
      }
    }
  }
}

// Tests each boundary between neighbours and the floats next to it; results can change only there.
TEST_P(SmallFloat, RoundsToNearestTiesToEven) {
  const Format& f = GetParam();
  const auto check = [&](float x) {
    const uint32_t nearest = f.nearest(std::fabs(static_cast<double>(x)));
    const uint32_t sign = std::signbit(x) ? f.sign_bit() : 0;
    const bool overflows = nearest > f.max_code;
    if (f.encode) {
      ASSERT_EQ(f.encode(x), std::min(nearest, f.max_code) | sign) << "x " << x;
    }
    if (f.encode_overflowing) {
      const uint32_t beyond = f.has_infinity ? f.max_code + 1 : f.nan_code;
      ASSERT_EQ(f.encode_overflowing(x), (overflows ? beyond : nearest) | sign) << "x " << x;
    }
  };
  for (uint32_t code = 0; code <= f.max_code; ++code) {
    const double middle = (f.value(code) + f.value(code + 1)) / 2;
    for (const double point : {f.value(code), middle}) {
      const auto x = static_cast<float>(point);
      for (const float near : {x, std::nextafter(x, 0.0f), std::nextafter(x, kInf)}) {
        if (std::isfinite(near)) {
          check(near);
          check(-near);
        }
      }
    }
  }
  std::mt19937 rng(7);
  for (int i = 0; i < 200000; ++i) {
    const uint32_t bits = rng();
    float x = 0.0f;
    std::memcpy(&x, &bits, sizeof(x));
    if (std::isfinite(x)) {
      check(x);
    }
  }
}

TEST_P(SmallFloat, InfinityAndNanFollowTheRule) {
  const Format& f = GetParam();
  const uint32_t sign = f.sign_bit();
  if (f.encode) {
    EXPECT_EQ(f.encode(kInf), f.max_code);
    EXPECT_EQ(f.encode(-kInf), f.max_code | sign);
    EXPECT_EQ(f.encode(std::numeric_limits<float>::max()), f.max_code);
    EXPECT_EQ(f.encode(kNan) & (sign - 1), f.nan_code != 0 ? f.nan_code : f.max_code);
    if (f.nan_code == 0) {
      EXPECT_EQ(f.encode(-kNan), f.max_code);  // no NaN: always the largest positive value
    }
  }
  if (f.encode_overflowing) {
    const uint32_t beyond = f.has_infinity ? f.max_code + 1 : f.nan_code;
    EXPECT_EQ(f.encode_overflowing(kInf), beyond);
    EXPECT_EQ(f.encode_overflowing(-kInf), beyond | sign);
    EXPECT_TRUE(std::isnan(f.decode(f.encode_overflowing(kNan))));
    EXPECT_TRUE(std::isnan(f.decode(f.encode_overflowing(-kNan))));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SmallFloat, ::testing::ValuesIn(formats()), testing::by_name);

TEST(FloatTypes, LargestValues) {
  EXPECT_EQ(static_cast<float>(F8E4M3(1e9f)), kE4M3Max);
  EXPECT_EQ(static_cast<float>(F8E5M2(1e9f)), kE5M2Max);
  EXPECT_EQ(e2m1_to_float(e2m1_from_float(1e9f)), kE2M1Max);
  EXPECT_EQ(e3m2_to_float(e3m2_from_float(1e9f)), kE3M2Max);
  EXPECT_EQ(e2m3_to_float(e2m3_from_float(1e9f)), kE2M3Max);
}

TEST(FloatTypes, E4m3OverflowsHalfAStepPastItsLargest) {
  EXPECT_EQ(F8E4M3::overflowing(464.0f).bits, 0x7e);  // tie between 448 and 480: even
  EXPECT_EQ(F8E4M3::overflowing(std::nextafter(464.0f, kInf)).bits, 0x7f);
}

TEST(FloatTypes, NanPayloadsStayNanInBf16) {
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffc00000u}) {
    float x = 0.0f;
    std::memcpy(&x, &bits, sizeof(x));
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(x)))) << bits;
  }
}

TEST(FloatTypes, E8m0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(e8m0_to_float(static_cast<uint8_t>(code))),
              std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(DTypes, NamesAreUniqueAndFoundAgain) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
  }
  EXPECT_FALSE(dtype_from_name("f7").has_value());
}

TEST(DTypes, PackedRowsFillWholeBytes) {
  EXPECT_EQ(bits(DType::kF4E2M1), 4);
  EXPECT_EQ(pack_factor(DType::kF4E2M1), 2);
  EXPECT_EQ(row_bytes(DType::kF4E2M1, 34), 17);
  EXPECT_EQ(bits(DType::kU4), 4);
  EXPECT_EQ(pack_factor(DType::kU4), 2);
  for (const DType dtype : {DType::kF6E3M2, DType::kF6E2M3}) {
    EXPECT_EQ(bits(dtype), 6);
    EXPECT_EQ(pack_factor(dtype), 4);
    EXPECT_EQ(row_bytes(dtype, 32), 24);
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kU8, DType::kE8M0}) {
    EXPECT_EQ(bits(dtype), 8);
    EXPECT_EQ(pack_factor(dtype), 1);
    EXPECT_EQ(row_bytes(dtype, 33), 33);
  }
}

}  // namespace
}  // namespace moebius
