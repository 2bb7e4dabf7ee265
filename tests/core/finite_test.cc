// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "moebius/tensor.h"

namespace moebius {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kE8M0};

TEST(FirstNonfinite, KnowsEveryCodeOfSmallTypes) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kE8M0}) {
    const int width = bits(dtype);
    for (uint32_t code = 0; code < 1u << width; ++code) {
      const Tensor one = Tensor::zeros({1}, dtype);
      std::memcpy(one.bytes(), &code, static_cast<size_t>(width / 8));
      ASSERT_EQ(first_nonfinite(dtype, one.bytes(), 1).has_value(),
                !std::isfinite(get_float(one, 0)))
          << name(dtype) << " code " << code;
    }
  }
}

TEST(FirstNonfinite, KnowsTheBordersOfF32) {
  const auto found = [](uint32_t word) {
    std::byte bytes[4];
    std::memcpy(bytes, &word, 4);
    return first_nonfinite(DType::kF32, bytes, 1).has_value();
  };
  for (const uint32_t sign : {0u, 0x80000000u}) {
    EXPECT_FALSE(found(sign | 0x00000001u));
    EXPECT_FALSE(found(sign | 0x7f7fffffu));
    EXPECT_TRUE(found(sign | 0x7f800000u));
    EXPECT_TRUE(found(sign | 0x7f800001u));
    EXPECT_TRUE(found(sign | 0x7fffffffu));
  }
}

TEST(FirstNonfinite, FindsTheFirstAtEveryPlaceAndAddress) {
  for (const DType dtype : kTypes) {
    const auto size = static_cast<size_t>(bits(dtype) / 8);
    const Tensor nan = Tensor::zeros({1}, dtype);
    set_float(nan, 0, std::numeric_limits<float>::quiet_NaN());
    const Tensor largest = Tensor::zeros({1}, dtype);
    set_float(largest, 0, dtype == DType::kF8E4M3 ? -448.0f : 1.0f);
    for (const size_t shift : {0u, 1u}) {
      for (const size_t n : {1u, 7u, 8u, 9u, 65u}) {
        std::vector<std::byte> bytes(n * size + shift);
        for (size_t i = 0; i < n; ++i) {
          std::memcpy(bytes.data() + shift + i * size, largest.bytes(), size);
        }
        const auto find = [&] {
          return first_nonfinite(dtype, bytes.data() + shift, static_cast<int64_t>(n));
        };
        ASSERT_EQ(find(), std::nullopt);
        for (size_t i = n; i-- > 0;) {  // every later element is NaN already
          std::memcpy(bytes.data() + shift + i * size, nan.bytes(), size);
          ASSERT_EQ(find(), static_cast<int64_t>(i)) << name(dtype) << " of " << n;
        }
      }
    }
  }
}

TEST(FirstNonfinite, FindsItBehindManyBlocks) {
  const Tensor t = Tensor::zeros({100003}, DType::kBF16);
  EXPECT_EQ(first_nonfinite(DType::kBF16, t.bytes(), t.numel()), std::nullopt);
  set_float(t, 100002, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(first_nonfinite(DType::kBF16, t.bytes(), t.numel()), 100002);
}

TEST(FirstNonfinite, IntegersAreFinite) {
  const std::vector<std::byte> ones(16, std::byte{0xff});
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kI32}) {
    EXPECT_EQ(first_nonfinite(dtype, ones.data(), 16 * 8 / bits(dtype)), std::nullopt);
  }
  EXPECT_EQ(first_nonfinite(DType::kE8M0, ones.data(), 0), std::nullopt);
}

}  // namespace
}  // namespace moebius
