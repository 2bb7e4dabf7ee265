// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How the vector tile kernels (vector_tiles.h) go through k, and the rows of activations and of C
// that they read and write.
#pragma once

#include <cstring>

#include "experts/cpu/tiles/vector_types.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kStepRows = 32;
constexpr int64_t kPartSteps = 4;  // 16 KiB of decoded weights
// How many bytes ahead weights are fetched that many rows are multiplied by.  A fetch past the end
// of the weights does no harm.
constexpr int64_t kPartAhead = 4096;

// The rows that are multiplied at once as weights are decoded.  Where there are more of them than
// kMostRows, half of the columns are multiplied at a time.
constexpr int kMostFewRows = kLanes == 8 ? 6 : kMostRows;

// Steps [first, first + steps) of k, all of one group.
struct Part {
  int64_t first;
  int64_t steps;
  int64_t group;
};

// The part that begins at step `first`; it has no steps at the end of k.
inline Part part_at(const TileGemm& g, int64_t first) {
  const int64_t group_steps = g.group_steps > 0 ? g.group_steps : g.steps;
  const int64_t group = first / group_steps;
  const int64_t group_end = (group + 1) * group_steps;
  const int64_t end = group_end < g.steps ? group_end : g.steps;
  return {first, end - first < kPartSteps ? end - first : kPartSteps, group};
}

// The scales of the columns in one group.
class GroupScales {
 public:
  // Null where there are no groups.
  const float* of(const TileGemm& g, const Part& part) {
    if (g.group_steps == 0) {
      return nullptr;
    }
    for (int v = 0; v < kVectors; ++v) {
      store(scales_ + v * kLanes,
            load_scales(g.group_scales, g.scale_dtype, part.group * kBlockColumns + v * kLanes));
    }
    return scales_;
  }

 private:
  float scales_[kBlockColumns];
};

// Some rows of a part of k.
template <typename Value, size_t kCount>
struct Rows {
  const Value* a[kCount];       // lines of 16 values, Panels::kLineStride apart
  Value* c[kCount];             // 16 columns, and kTileFloats further on the other 16
  const float* scales[kCount];  // of the row in this group, or null: 1
};

// Splits lanes of four int8 each into the int16 pairs of even k and those of odd k.
inline void split_int8(const std::byte* from, int32_t* even, int32_t* odd) {
  const auto codes = load<Shorts>(from);
  store(even, (Shorts)((Words)codes << 8 & 0xff00ff00) >> 8);
  store(odd, codes >> 8);
}

// Reads panels of f32.
struct FloatPanels {
  using Value = float;
  using Vector = Floats;
  static constexpr bool kHasScales = true;
  static constexpr int64_t kLineStride = kStepBytes / 4;

  // From a row of a part to value k of step s, and from there to the next in a line.
  static constexpr int64_t kValueStride = 1;
  static constexpr int64_t offset(int64_t s, int64_t k) {
    return (2 * s + k / 16) * kLineStride + k % 16;
  }

  const float* row(const TileGemm& g, const Part& part, int64_t r, int) const {
    return reinterpret_cast<const float*>(
        g.a + ((r / kPanelRows * g.steps + part.first) * 2) * kStepBytes +
        r % kPanelRows * kTileRowBytes);
  }
};

// Reads panels of int8, whose rows are split into int16 pairs as the weights are.
struct IntPanels {
  using Value = int32_t;
  using Vector = Ints;
  static constexpr bool kHasScales = false;
  static constexpr int64_t kLineStride = 16;

  // From a row of a part to pair i of step s: i / 2 is which four k, i % 2 those of even or odd k.
  // From the pairs of even k to those of odd k.
  static constexpr int64_t kValueStride = 16;
  static constexpr int64_t offset(int64_t s, int64_t i) {
    return (2 * s + i % 2) * kLineStride + i / 2;
  }

  const int32_t* row(const TileGemm& g, const Part& part, int64_t r, int i) {
    const std::byte* a =
        g.a + (r / kPanelRows * g.steps + part.first) * kStepBytes + r % kPanelRows * kTileRowBytes;
    int32_t* out = split[i];
    for (int64_t s = 0; s < part.steps; ++s) {
      for (int64_t quad = 0; quad < 16; quad += kLanes) {
        int32_t* even = out + s * kStepRows + quad;
        split_int8(a + s * kStepBytes + quad * 4, even, even + 16);
      }
    }
    return out;
  }

  int32_t split[kMostFewRows][kPartSteps * kStepRows];
};

template <typename Value, size_t kCount>
inline void set_row(Rows<Value, kCount>& rows,
                    int i,
                    const TileGemm& g,
                    const Part& part,
                    int64_t r,
                    const Value* a) {
  rows.a[i] = a;
  rows.c[i] = reinterpret_cast<Value*>(g.c) + r / kTileRows * 2 * kTileFloats + r % kTileRows * 16;
  rows.scales[i] = g.row_scales != nullptr ? g.row_scales + r * g.row_groups + part.group : nullptr;
}

// Adds the sums of a part of k, times scales, to row i of C.  column_scales: [32], or null: 1;
// integers have none.
template <typename Panels, size_t kCount>
inline void add_to_c(const Rows<typename Panels::Value, kCount>& rows,
                     int i,
                     const typename Panels::Vector (&sums)[static_cast<size_t>(kVectors)],
                     const float* column_scales) {
  using Vector = typename Panels::Vector;
  for (int v = 0; v < kVectors; ++v) {
    auto* c = rows.c[i] + v / kChunks * kTileFloats + v % kChunks * kLanes;
    const auto before = load<Vector>(c);
    if constexpr (Panels::kHasScales) {
      if (column_scales != nullptr) {
        Vector scales = load<Vector>(column_scales + v * kLanes);
        scales = rows.scales[i] != nullptr ? scales * *rows.scales[i] : scales;
        store(c, multiply_add(sums[v], scales, before));
        continue;
      }
    }
    store(c, before + sums[v]);
  }
}

}  // namespace

}  // namespace moebius::cpu
