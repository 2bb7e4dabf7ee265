// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/tile_epilogue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "experts/cpu/activation.h"
#include "experts/cpu/kernels.h"

namespace moebius::cpu {

namespace {

// The rows of a pair of tiles of C, by columns 0-15 and 16-31.
using Halves = float[2][kTileFloats];

// Computes values = sum * row scale * column scale + bias + addend.
void load_rows(
    const TileEpilogue& e, const float* c, int64_t first, int64_t count, Halves& values) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = first + i;
    const float row_scale = e.row_scales != nullptr ? e.row_scales[r * e.scale_stride] : 1.0f;
    for (int64_t half = 0; half < 2; ++half) {
      const float* sums =
          c + (r / kTileRows * 2 + half) * kTileFloats + r % kTileRows * kTileColumns;
      float* out = values[half] + i * kTileColumns;
      for (int64_t j = 0; j < kTileColumns; ++j) {
        const int64_t n = half * kTileColumns + j;
        const float sum =
            e.integers ? static_cast<float>(std::bit_cast<int32_t>(sums[j])) : sums[j];
        const float scaled =
            sum * row_scale * (e.column_scales != nullptr ? e.column_scales[n] : 1.0f);
        out[j] = scaled + (e.bias != nullptr ? e.bias[n] : 0.0f) +
                 (e.addend != nullptr ? e.addend[r * kBlockColumns + n] : 0.0f);
      }
    }
  }
}

void activate_rows(const TileEpilogue& e, int64_t first, int64_t count, Halves& values) {
  const CpuKernels& kernels = cpu_kernels();
  const ActivationSpec& spec = *e.activation;
  const int64_t n = count * kTileColumns;
  for (float* half : values) {
    kernels.round_to(e.dtype, half, n);
  }
  for (int64_t half = 0; half < (spec.gated ? 1 : 2); ++half) {
    float results[kTileFloats];
    activate(spec, e.dtype, {values[half], values[1]}, results, n);
    for (int64_t i = 0; i < n; ++i) {
      results[i] *= e.act_factor;
    }
    for (int64_t i = 0; i < count; ++i) {
      kernels.narrow(e.as_f32 ? DType::kF32 : e.dtype, results + i * kTileColumns,
                     e.act_row(first + i) + half * e.half_stride, kTileColumns);
    }
  }
}

void store_rows(const TileEpilogue& e, int64_t first, int64_t count, Halves& values) {
  const CpuKernels& kernels = cpu_kernels();
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t columns = std::clamp<int64_t>(e.columns - half * kTileColumns, 0, kTileColumns);
    const int64_t column = e.column + half * kTileColumns;
    if (e.weights != nullptr) {
      kernels.round_to(e.dtype, values[half], count * kTileColumns);
      for (int64_t i = 0; i < count * kTileColumns; ++i) {
        values[half][i] *= e.weights[first + i / kTileColumns];
      }
      kernels.round_to(e.dtype, values[half], count * kTileColumns);
    }
    for (int64_t i = 0; i < count; ++i) {
      float* row = values[half] + i * kTileColumns;
      for (int64_t j = 0; e.weights != nullptr && j < kTileColumns; ++j) {
        row[j] += 0.0f;
      }
      kernels.narrow(e.dtype, row, e.out[first + i] + column * bits(e.dtype) / 8, columns);
    }
  }
}

}  // namespace

void finish_rows(const TileEpilogue& e, const float* c, int64_t begin, int64_t end) {
  for (int64_t first = begin; first < end;) {
    const int64_t count = std::min(end - first, kTileRows - first % kTileRows);
    Halves values;
    load_rows(e, c, first, count, values);
    if (e.activation != nullptr) {
      activate_rows(e, first, count, values);
    } else {
      store_rows(e, first, count, values);
    }
    first += count;
  }
}

}  // namespace moebius::cpu
