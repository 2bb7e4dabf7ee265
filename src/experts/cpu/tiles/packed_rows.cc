// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/packed_rows.h"

#include <array>
#include <cstring>

#include "experts/cpu/kernels.h"
#include "moebius/float_types.h"

namespace moebius::cpu {

namespace {

using Table = std::array<uint16_t, 256>;

constexpr Table e4m3_table() {
  Table table{};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = BFloat16(::moebius::detail::E4M3Format::decode(static_cast<uint32_t>(code))).bits;
  }
  return table;
}
constexpr Table int8_table() {
  Table table{};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = BFloat16(static_cast<float>(static_cast<int8_t>(code))).bits;
  }
  return table;
}
constexpr Table kE4M3 = e4m3_table();
constexpr Table kInt8 = int8_table();

// The row's bytes as they go into panels.
const std::byte* converted(
    DType from, bool integers, const std::byte* row, int64_t k, float factor, uint16_t* scratch) {
  if (integers || (from == DType::kBF16 && factor == 1.0f)) {
    return row;
  }
  if (from == DType::kBF16) {
    const auto* values = reinterpret_cast<const BFloat16*>(row);
    for (int64_t i = 0; i < k; ++i) {
      scratch[i] = BFloat16(static_cast<float>(values[i]) * factor).bits;
    }
    return reinterpret_cast<const std::byte*>(scratch);
  }
  if (from == DType::kF32) {
    const auto* values = reinterpret_cast<const float*>(row);
    if (factor == 1.0f) {
      cpu_kernels().narrow(DType::kBF16, values, scratch, k);
    } else {
      for (int64_t i = 0; i < k; ++i) {
        scratch[i] = BFloat16(values[i] * factor).bits;
      }
    }
  } else {
    const Table& table = from == DType::kI8 ? kInt8 : kE4M3;
    for (int64_t i = 0; i < k; ++i) {
      scratch[i] = table[static_cast<uint8_t>(row[i])];
    }
  }
  return reinterpret_cast<const std::byte*>(scratch);
}

}  // namespace

void pack_rows(DType from,
               bool integers,
               const std::byte* const* rows,
               int64_t m,
               int64_t k,
               int64_t steps,
               float factor,
               uint16_t* scratch,
               std::byte* panels) {
  const int64_t bytes = integers ? k : 2 * k;
  const int64_t whole = bytes / kTileRowBytes;
  for (int64_t r = 0; r < padded_rows(m); ++r) {
    std::byte* out = panels + r / kPanelRows * steps * kStepBytes + r % kPanelRows * kTileRowBytes;
    if (r >= m) {
      for (int64_t s = 0; s < steps; ++s) {
        std::memset(out + s * kStepBytes, 0, kTileRowBytes);
      }
      continue;
    }
    const std::byte* row = converted(from, integers, rows[r], k, factor, scratch);
    for (int64_t s = 0; s < whole; ++s) {
      std::memcpy(out + s * kStepBytes, row + s * kTileRowBytes, kTileRowBytes);
    }
    if (whole < steps) {
      const auto rest = static_cast<size_t>(bytes - whole * kTileRowBytes);
      std::memcpy(out + whole * kStepBytes, row + whole * kTileRowBytes, rest);
      std::memset(out + whole * kStepBytes + rest, 0, kTileRowBytes - rest);
    }
  }
}

}  // namespace moebius::cpu
