// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/packed_rows.h"

#include <algorithm>
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

// bf16 of values times a factor.
void narrow_scaled(const float* values, int64_t n, float factor, uint16_t* out) {
  if (factor == 1.0f) {
    return cpu_kernels().narrow(DType::kBF16, values, out, n);
  }
  constexpr int64_t kAtATime = 256;
  std::array<float, kAtATime> scaled;
  for (int64_t first = 0; first < n; first += kAtATime) {
    const int64_t count = std::min(kAtATime, n - first);
    for (int64_t i = 0; i < count; ++i) {
      scaled[static_cast<size_t>(i)] = values[first + i] * factor;
    }
    cpu_kernels().narrow(DType::kBF16, scaled.data(), out + first, count);
  }
}

// What goes into panels where it is not a row's bytes.
const std::byte* converted(
    DType from, const std::byte* row, int64_t k, float factor, uint16_t* scratch) {
  if (from == DType::kF32) {
    narrow_scaled(reinterpret_cast<const float*>(row), k, factor, scratch);
  } else {
    const Table& table = from == DType::kI8 ? kInt8 : kE4M3;
    for (int64_t i = 0; i < k; ++i) {
      scratch[i] = table[static_cast<uint8_t>(row[i])];
    }
    if (factor != 1.0f) {
      cpu_kernels().scale_bf16(scratch, factor, k);
    }
  }
  return reinterpret_cast<const std::byte*>(scratch);
}

// The first `lines` lines of some rows of a tile.  Line by line: tiles are written in order, and
// rows from memory arrive side by side.
void copy_lines(const std::byte* const* rows, int64_t num_rows, int64_t lines, std::byte* tile) {
  for (int64_t s = 0; s < lines; ++s) {
    for (int64_t r = 0; r < num_rows; ++r) {
      std::memcpy(tile + s * kStepBytes + r * kTileRowBytes, rows[r] + s * kTileRowBytes,
                  kTileRowBytes);
    }
  }
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
  const auto rest = static_cast<size_t>(bytes - whole * kTileRowBytes);
  const bool copied = integers || from == DType::kBF16;
  for (int64_t first = 0; first < m; first += kTileRows) {
    std::byte* tile =
        panels + first / kPanelRows * steps * kStepBytes + first % kPanelRows * kTileRowBytes;
    const int64_t num_rows = std::min(kTileRows, m - first);
    if (copied) {
      copy_lines(rows + first, num_rows, whole, tile);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::byte* row = rows[first + r];
      std::byte* out = tile + r * kTileRowBytes;
      if (!copied) {
        row = converted(from, row, k, factor, scratch);
        copy_lines(&row, 1, whole, out);
      }
      if (whole < steps) {
        std::memcpy(out + whole * kStepBytes, row + whole * kTileRowBytes, rest);
        std::memset(out + whole * kStepBytes + rest, 0, kTileRowBytes - rest);
      }
    }
    for (int64_t s = 0; from == DType::kBF16 && factor != 1.0f && s < steps; ++s) {
      cpu_kernels().scale_bf16(reinterpret_cast<uint16_t*>(tile + s * kStepBytes), factor,
                               num_rows * kTileRowBytes / 2);
    }
  }
}

}  // namespace moebius::cpu
