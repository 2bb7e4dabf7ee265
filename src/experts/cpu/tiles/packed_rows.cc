// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/packed_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "experts/cpu/kernels.h"
#include "moebius/float_types.h"
#include "quant/e4m3_values.h"

namespace moebius::cpu {

namespace {

// The values that fp8 or int8 codes stand for.
using Table = std::array<float, 256>;

constexpr Table int8_table() {
  Table table{};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = static_cast<float>(static_cast<int8_t>(code));
  }
  return table;
}
constexpr Table kInt8 = int8_table();
// The same values as bf16, which holds all of them exactly.
constexpr std::array<uint16_t, 256> bf16_of(const Table& table) {
  std::array<uint16_t, 256> bits{};
  for (size_t code = 0; code < bits.size(); ++code) {
    bits[code] = BFloat16(table[code]).bits;
  }
  return bits;
}
constexpr std::array<uint16_t, 256> kE4M3AsBF16 = bf16_of(quant::kE4M3Values);
constexpr std::array<uint16_t, 256> kInt8AsBF16 = bf16_of(kInt8);

template <typename Value>
void look_up(const std::array<Value, 256>& table, const std::byte* codes, int64_t k, Value* out) {
  for (int64_t i = 0; i < k; ++i) {
    out[i] = table[static_cast<uint8_t>(codes[i])];
  }
}

// Rounds values times a factor to bf16.
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

// Converts a row to the operand's values, in scratch.
void convert(const RowPacking& how, const std::byte* row, std::byte* scratch) {
  const bool is_int8 = how.from == DType::kI8;
  const bool is_code = is_int8 || how.from == DType::kF8E4M3;
  if (how.operand == Operand::kF32) {
    auto* out = reinterpret_cast<float*>(scratch);
    is_code ? look_up(is_int8 ? kInt8 : quant::kE4M3Values, row, how.k, out)
            : cpu_kernels().widen(how.from, row, out, how.k);
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(scratch);
  if (!is_code) {
    narrow_scaled(reinterpret_cast<const float*>(row), how.k, how.factor, out);
    return;
  }
  look_up(is_int8 ? kInt8AsBF16 : kE4M3AsBF16, row, how.k, out);
  if (how.factor != 1.0f) {
    cpu_kernels().scale_bf16(out, how.factor, how.k);
  }
}

bool holds(Operand operand, DType dtype) {
  return dtype == (operand == Operand::kI8    ? DType::kI8
                   : operand == Operand::kF32 ? DType::kF32
                                              : DType::kBF16);
}

// Copies the first `lines` lines of some rows of a tile.  Why line by line: tiles are written in
// order, and rows from memory arrive side by side.
void copy_lines(const std::byte* const* rows, int64_t num_rows, int64_t lines, std::byte* tile) {
  for (int64_t s = 0; s < lines; ++s) {
    for (int64_t r = 0; r < num_rows; ++r) {
      std::memcpy(tile + s * kStepBytes + r * kTileRowBytes, rows[r] + s * kTileRowBytes,
                  kTileRowBytes);
    }
  }
}

}  // namespace

void pack_rows(const RowPacking& how,
               const std::byte* const* rows,
               int64_t m,
               std::byte* scratch,
               std::byte* panels) {
  const int64_t lines = how.lines;
  const int64_t bytes = how.k * value_bytes(how.operand);
  const int64_t whole = bytes / kTileRowBytes;
  const auto rest = static_cast<size_t>(bytes - whole * kTileRowBytes);
  const bool copied = holds(how.operand, how.from);
  for (int64_t first = 0; first < m; first += kTileRows) {
    std::byte* tile =
        panels + first / kPanelRows * lines * kStepBytes + first % kPanelRows * kTileRowBytes;
    const int64_t num_rows = std::min(kTileRows, m - first);
    if (copied) {
      copy_lines(rows + first, num_rows, whole, tile);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::byte* row = rows[first + r];
      std::byte* out = tile + r * kTileRowBytes;
      if (!copied) {
        convert(how, row, scratch);
        row = scratch;
        copy_lines(&row, 1, whole, out);
      }
      for (int64_t line = whole; line < lines; ++line) {
        const size_t kept = line == whole ? rest : 0;
        std::memcpy(out + line * kStepBytes, row + line * kTileRowBytes, kept);
        std::memset(out + line * kStepBytes + kept, 0, kTileRowBytes - kept);
      }
    }
    const bool scales = copied && how.operand == Operand::kBF16 && how.factor != 1.0f;
    for (int64_t l = 0; scales && l < lines; ++l) {
      cpu_kernels().scale_bf16(reinterpret_cast<uint16_t*>(tile + l * kStepBytes), how.factor,
                               num_rows * kTileRowBytes / 2);
    }
  }
}

}  // namespace moebius::cpu
