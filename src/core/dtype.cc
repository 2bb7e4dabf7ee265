// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/dtype.h"

#include <array>
#include <cassert>
#include <string>

#include "moebius/error.h"

namespace moebius {

namespace {

struct DTypeInfo {
  std::string_view name;
  int bits;
};

// Entries have the order of the enumerators.
constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"f32", 32},
    {"f16", 16},
    {"bf16", 16},
    {"f8e4m3", 8},
    {"f8e5m2", 8},
    {"i8", 8},
    {"u8", 8},
    {"i32", 32},
    {"i64", 64},
    {"bool", 8},
    {"f4e2m1", 4},
    {"u4", 4},
    {"f6e3m2", 6},
    {"f6e2m3", 6},
    {"e8m0", 8},
}};

const DTypeInfo& info(DType dtype) {
  return kInfo[static_cast<size_t>(dtype)];
}

}  // namespace

int bits(DType dtype) {
  return info(dtype).bits;
}

std::string_view name(DType dtype) {
  return info(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kInfo.size(); ++i) {
    if (kInfo[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

int pack_factor(DType dtype) {
  switch (bits(dtype)) {
    case 4:
      return 2;
    case 6:
      return 4;
    default:
      return 1;
  }
}

int64_t row_bytes(DType dtype, int64_t n) {
  assert(n % pack_factor(dtype) == 0);
  return n * bits(dtype) / 8;
}

void expect_dtype(DType actual, DType expected, std::string_view what, Where where) {
  if (actual != expected) {
    expect_eq(name(actual), name(expected), std::string(what) + " dtype", where);
  }
}

}  // namespace moebius
