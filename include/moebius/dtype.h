// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DType: the element types of tensors and their sizes.
//
// Packed types store several elements per byte, with the first element in the lowest bits:
//   4 bits  two per byte, low nibble first (OCP MX v1.0, NVFP4 and compressed-tensors agree)
//   6 bits  four per three bytes, in little-endian bit order
// The shape of a packed tensor counts elements.  Each row starts on a byte boundary, so its last
// dimension is a multiple of 2 (4 bits) or 4 (6 bits).
// Thread-safety: all functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <string_view>
#include <type_traits>

#include "moebius/api.h"
#include "moebius/float_types.h"

namespace moebius MOEBIUS_API {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // OCP e4m3 without infinities ("fn"), largest value 448
  kF8E5M2,  // OCP e5m2 with infinities, largest finite value 57344
  kI8,
  kU8,
  kI32,
  kI64,
  kBool,    // one byte, 0 or 1
  kF4E2M1,  // packed
  kU4,      // packed; a weight is (q - zero_point) * scale, with zero_point 8 when none is given
  kF6E3M2,  // packed
  kF6E2M3,  // packed
  kE8M0,    // a scale: 2^(code - 127), code 255 is NaN
};

inline constexpr int kNumDTypes = 15;

int bits(DType dtype);
std::string_view name(DType dtype);  // "bf16", "f8e4m3", "u4", ...
std::optional<DType> dtype_from_name(std::string_view name);
bool is_float(DType dtype);  // f32, bf16 or f16

// How many elements share bytes: 1, 2 (4 bits) or 4 (6 bits).
int pack_factor(DType dtype);
// The bytes of a row of n elements.  REQUIRES: n % pack_factor(dtype) == 0.
int64_t row_bytes(DType dtype, int64_t n);

// Throws InvalidArgument, which names both types, when they differ.
void expect_dtype(DType actual,
                  DType expected,
                  std::string_view what,
                  std::source_location where = std::source_location::current());

// Whether elements of the dtype may be read as T.  Every one-byte or packed type may be read as
// uint8_t, which is the only type for packed types and e8m0.
template <typename T>
constexpr bool holds(DType dtype) {
  using std::is_same_v;
  if constexpr (is_same_v<T, uint8_t>) {
    return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16 &&
           dtype != DType::kI32 && dtype != DType::kI64;
  }
  return is_same_v<T, float>      ? dtype == DType::kF32
         : is_same_v<T, Float16>  ? dtype == DType::kF16
         : is_same_v<T, BFloat16> ? dtype == DType::kBF16
         : is_same_v<T, F8E4M3>   ? dtype == DType::kF8E4M3
         : is_same_v<T, F8E5M2>   ? dtype == DType::kF8E5M2
         : is_same_v<T, int8_t>   ? dtype == DType::kI8
         : is_same_v<T, int32_t>  ? dtype == DType::kI32
         : is_same_v<T, int64_t>  ? dtype == DType::kI64
                                  : is_same_v<T, bool> && dtype == DType::kBool;
}

}  // namespace moebius
