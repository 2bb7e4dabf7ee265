// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The tile kernels in plain C++: what the others are compared with where they cannot run.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "experts/cpu/activation.h"
#include "experts/cpu/tiles/tile_kernels.h"
#include "moebius/float_types.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kBF16PerStep = 32;
constexpr int64_t kI8PerStep = 64;

int64_t c_index(int64_t row, int64_t column) {
  const int64_t tile = row / kTileRows % 2 * 2 + column / 16;
  return row / kPanelRows * kPanelFloats + tile * kTileFloats + row % kTileRows * 16 + column % 16;
}

uint8_t byte_at(const std::byte* bytes, int64_t i) {
  return static_cast<uint8_t>(bytes[i]);
}

template <typename T>
float value_at(const std::byte* bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return static_cast<float>(value);
}

float e4m3(uint8_t code) {
  F8E4M3 value;
  value.bits = code;
  return static_cast<float>(value);
}

// Of a word of two codes.
float e4m3_at(const std::byte* word, bool of_even_row) {
  if (!of_even_row) {
    return e4m3(byte_at(word, 1));
  }
  const uint8_t low = byte_at(word, 0);
  return e4m3(static_cast<uint8_t>((low & 0x80) | (low & 7) << 4 | (low >> 3 & 0xf)));
}

float scale_at(const std::byte* scales, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return value_at<BFloat16>(scales, i);
    case DType::kF16:
      return value_at<Float16>(scales, i);
    case DType::kE8M0:
      return e8m0_to_float(byte_at(scales, i));
    default:
      return value_at<float>(scales, i);
  }
}

int nibble_at(const std::byte* unit, int64_t tile, int64_t row, int64_t element) {
  const std::byte* word = unit + tile * 256 + row / 4 * 64 + element * 2;
  return (byte_at(word, row % 4 / 2) >> (row % 2 * 4)) & 0xf;
}

constexpr float kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};

// Element (k pair `row`, column, which) of a unit; zero_points and step_scales as in TileGemm.
float decoded(const TileGemm& g,
              const std::byte* unit,
              const std::byte* step_scales,
              const uint8_t* zero_points,
              int64_t row,
              int64_t column,
              int64_t which) {
  const int64_t tile = column / 16;
  const int64_t element = column % 16 * 2 + which;
  switch (g.code) {
    case TileCode::kBF16:
      return value_at<BFloat16>(unit, tile * 512 + row * 32 + element);
    case TileCode::kF8E4M3:
      return e4m3_at(unit + tile * 512 + row / 2 * 64 + element * 2, row % 2 == 0) * 0x1p-8f;
    case TileCode::kI8AsBF16: {
      const std::byte* pair = unit + tile * 512 + row / 2 * 64;
      const int biased = byte_at(pair, element / 8 * 16 + row % 2 * 8 + element % 8);
      return static_cast<float>(biased - 128) * 0x1p-112f;
    }
    case TileCode::kInt4:
      return static_cast<float>(nibble_at(unit, tile, row, element) -
                                (zero_points != nullptr ? zero_points[column] : 8));
    case TileCode::kMxfp4:
      return kE2M1[nibble_at(unit, tile, row, element)] *
             e8m0_to_float(byte_at(step_scales, column));
    default:
      return kE2M1[nibble_at(unit, tile, row, element)] *
             e4m3(byte_at(step_scales, row / 8 * kBlockColumns + column)) * 0x1p-112f;
  }
}

void gemm_integers(const TileGemm& g) {
  for (int64_t r = 0; r < g.rows; ++r) {
    for (int64_t n = 0; n < kBlockColumns; ++n) {
      int32_t sum = 0;
      for (int64_t s = 0; s < g.steps; ++s) {
        const std::byte* a =
            g.a + (r / kPanelRows * g.steps + s) * kStepBytes + r % kPanelRows * kTileRowBytes;
        const std::byte* b = g.units + s * kStepBytes + n / 16 * kTileBytes;
        for (int64_t k = 0; k < kI8PerStep; ++k) {
          sum +=
              static_cast<int8_t>(a[k]) * static_cast<int8_t>(b[(k / 4 * 16 + n % 16) * 4 + k % 4]);
        }
      }
      g.c[c_index(r, n)] = std::bit_cast<float>(sum);
    }
  }
}

// [k][column] of one step.
using StepValues = float[kBF16PerStep][kBlockColumns];

void decode_step(const TileGemm& g, int64_t step, int64_t group, StepValues& out) {
  const std::byte* unit = g.units + step * unit_bytes(g.code);
  const std::byte* scales = g.step_scales + step * step_scale_bytes(g.code);
  const uint8_t* zero_points =
      g.zero_points != nullptr ? g.zero_points + group * kBlockColumns : nullptr;
  for (int64_t k = 0; k < kBF16PerStep; ++k) {
    for (int64_t n = 0; n < kBlockColumns; ++n) {
      out[k][n] = decoded(g, unit, scales, zero_points, k / 2, n, k % 2);
    }
  }
}

void gemm_values(const TileGemm& g) {
  const int64_t group_steps = g.group_steps > 0 ? g.group_steps : g.steps;
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  std::memset(g.c, 0, static_cast<size_t>(num_panels * kPanelFloats) * sizeof(float));
  std::vector<std::array<float, kBlockColumns>> sums(static_cast<size_t>(g.rows));
  for (int64_t first = 0, group = 0; first < g.steps; first += group_steps, ++group) {
    std::fill(sums.begin(), sums.end(), std::array<float, kBlockColumns>{});
    for (int64_t s = first; s < std::min(first + group_steps, g.steps); ++s) {
      StepValues values;
      decode_step(g, s, group, values);
      for (int64_t r = 0; r < g.rows; ++r) {
        const std::byte* a =
            g.a + (r / kPanelRows * g.steps + s) * kStepBytes + r % kPanelRows * kTileRowBytes;
        float* sum = sums[static_cast<size_t>(r)].data();
        for (int64_t k = 0; k < kBF16PerStep; ++k) {
          const float factor = value_at<BFloat16>(a, k);
          for (int64_t n = 0; n < kBlockColumns; ++n) {
            sum[n] += factor * values[k][n];
          }
        }
      }
    }
    float scales[kBlockColumns];
    for (int64_t n = 0; n < kBlockColumns; ++n) {
      scales[n] = g.group_steps > 0
                      ? scale_at(g.group_scales, g.scale_dtype, group * kBlockColumns + n) *
                            scale_factor(g.code)
                      : 1.0f;
    }
    for (int64_t r = 0; r < g.rows; ++r) {
      const float* sum = sums[static_cast<size_t>(r)].data();
      const float row_scale =
          g.row_scales != nullptr ? g.row_scales[r * g.row_groups + group] : 1.0f;
      for (int64_t n = 0; n < kBlockColumns; ++n) {
        g.c[c_index(r, n)] += sum[n] * (scales[n] * row_scale);
      }
    }
  }
}

void multiply(const TileGemm& g, const TileEpilogue& e, TileRest&) {
  g.code == TileCode::kI8 ? gemm_integers(g) : gemm_values(g);
  finish_rows_portable(e, g.c, 0, g.rows);
}

void activate_row(const TileEpilogue& e, float* values, std::byte* out) {
  const int64_t count = e.activation->gated ? 16 : kBlockColumns;
  float result[kBlockColumns];
  for (int64_t n = 0; n < kBlockColumns; ++n) {
    values[n] = static_cast<float>(BFloat16(values[n]));
  }
  activate(portable_kernels(), *e.activation, DType::kBF16, values, values + 16, 1, result, count);
  for (int64_t n = 0; n < count; ++n) {
    result[n] *= e.act_factor;
    if (e.as_f32) {
      std::memcpy(out + n * 4, result + n, 4);
    } else {
      const uint16_t bits = BFloat16(result[n]).bits;
      std::memcpy(out + n * 2, &bits, 2);
    }
  }
}

void finish(TileRest&) {}

}  // namespace

void finish_rows_portable(const TileEpilogue& e, const float* c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float row_scale = e.row_scales != nullptr ? e.row_scales[r * e.scale_stride] : 1.0f;
    float values[kBlockColumns];
    for (int64_t n = 0; n < kBlockColumns; ++n) {
      const float from = c[c_index(r, n)];
      const float sum = e.integers ? static_cast<float>(std::bit_cast<int32_t>(from)) : from;
      const float scaled =
          sum * row_scale * (e.column_scales != nullptr ? e.column_scales[n] : 1.0f);
      values[n] = scaled + (e.bias != nullptr ? e.bias[n] : 0.0f);
    }
    if (e.activation != nullptr) {
      activate_row(e, values, e.act_row(r));
      continue;
    }
    for (int64_t n = 0; n < e.columns; ++n) {
      BFloat16 value(values[n]);
      if (e.weights != nullptr) {
        value = BFloat16(static_cast<float>(value) * e.weights[r]);
        value = BFloat16(static_cast<float>(value) + 0.0f);
      }
      e.out[r][e.column + n] = value.bits;
    }
  }
}

const TileKernels& portable_tiles() {
  static const TileKernels kernels = {"portable", multiply, finish};
  return kernels;
}

}  // namespace moebius::cpu
