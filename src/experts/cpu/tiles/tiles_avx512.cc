// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The tile kernels for AVX-512 BF16 and VNNI, for processors without AMX.  A row of a weight tile
// is one register of 16 columns by two k (of int8 four).  It is multiplied with as many values of
// an activation row in all lanes.
//
// For few rows codes are multiplied in registers as they are decoded; for more rows a part of k is
// decoded into L1 first.  Where bf16 products are slow, f32 products take their place (see
// avx512_floats.h), for any number of rows.  Either way a row is summed in the same order, whatever
// rows are beside it.
#include <algorithm>

#include "core/ceil_div.h"
#include "experts/cpu/tiles/avx512_codes.h"
#include "experts/cpu/tiles/avx512_epilogue.h"
#include "experts/cpu/tiles/avx512_floats.h"
#include "experts/cpu/tiles/avx512_rows.h"
#include "experts/cpu/tiles/avx512_tiles.h"

namespace moebius::cpu {

namespace {

using namespace avx512;

constexpr int64_t kMostRows = 4;  // at a time: 16 sums in registers, and 8 scaled ones
// With up to this many rows, codes are decoded again for the next kMostRows.  8 rows of int4 then
// take 42 ns a step, and by way of L1 53 ns.
constexpr int64_t kMostFusedRows = 8;
constexpr int64_t kMostWideRows = 6;  // of f32 products at a time: 24 sums in registers

// Adds a * b.  Why in assembly: the compiler orders the multiply-adds of many rows chain by chain,
// where each waits for the one before, and keeps weights in memory meanwhile.
[[gnu::always_inline]] inline void add_product(__m512& sum, __m512 a, __m512 b) {
  asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// Sums of some rows.  Even and odd tile rows are summed apart: with few rows a single chain would
// wait for its own results.
template <size_t kRows>
class Sums {
 public:
  // a: the activations of this step, as they are or widened.
  [[gnu::always_inline]] void add(int row,
                                  const FloatRow& left,
                                  const FloatRow& right,
                                  const float* a) {
    unroll<kRows>([&](size_t r) __attribute__((always_inline)) {
      const float* of_row = a + r * kWideFloats + row;
      const __m512 odd = _mm512_set1_ps(of_row[kTileRows]);
      const __m512 even = _mm512_set1_ps(of_row[0]);
      __m512(&chains)[2] = chains_[row % 2][r];
      add_product(chains[0], left.odd, odd);
      add_product(chains[1], right.odd, odd);
      add_product(chains[0], left.even, even);
      add_product(chains[1], right.even, even);
    });
  }
  [[gnu::always_inline]] void add(int row, __m512i left, __m512i right, const std::byte* a) {
    unroll<kRows>([&](size_t r) {
      const auto all = (__m512bh)broadcast(a, r, row);
      __m512(&chains)[2] = chains_[row % 2][r];
      chains[0] = _mm512_dpbf16_ps(chains[0], all, (__m512bh)left);
      chains[1] = _mm512_dpbf16_ps(chains[1], all, (__m512bh)right);
    });
  }

  // What was added since the last call has these scales of columns, and a scale of its row.
  [[gnu::always_inline]] void scale(__m512 left, __m512 right) {
    scale([&](size_t) { return left; }, [&](size_t) { return right; });
  }
  [[gnu::always_inline]] void scale(__m512 left,
                                    __m512 right,
                                    const float* row_scales,
                                    int64_t stride) {
    const auto of_row = [&](size_t r, __m512 column) {
      return _mm512_mul_ps(column, _mm512_set1_ps(row_scales[static_cast<int64_t>(r) * stride]));
    };
    scale([&](size_t r) { return of_row(r, left); }, [&](size_t r) { return of_row(r, right); });
  }
  // Multiplies all that was added, which is not scaled otherwise.
  [[gnu::always_inline]] void multiply(__m512 left, __m512 right) {
    unroll<2>([&](size_t odd) __attribute__((always_inline)) {
      unroll<kRows>([&](size_t r) __attribute__((always_inline)) {
        __m512(&chains)[2] = chains_[odd][r];
        chains[0] = _mm512_mul_ps(chains[0], left);
        chains[1] = _mm512_mul_ps(chains[1], right);
      });
    });
  }

  // kScales: everything that is added will be scaled.
  template <bool kScales>
  [[gnu::always_inline]] void start(float* c, bool adds) {
    c_ = c;
    clear();
    for_each([&](size_t r, size_t half) {
      __m512& sum = kScales ? scaled_[r][half] : chains_[0][r][half];
      sum = adds ? load16(in_c(r, half)) : _mm512_setzero_ps();
      if constexpr (kScales && kScaledInC) {
        _mm512_storeu_ps(in_c(r, half), sum);
      }
    });
  }
  template <bool kScales>
  [[gnu::always_inline]] void store() const {
    for_each([&](size_t r, size_t half) {
      if constexpr (!kScales || !kScaledInC) {
        _mm512_storeu_ps(in_c(r, half), kScales ? scaled_[r][half] : unscaled(r, half));
      }
    });
  }

 private:
  // Scaled sums of more rows have no registers beside the others.
  static constexpr bool kScaledInC = kRows > kMostRows;

  template <typename Body>
  [[gnu::always_inline]] static void for_each(Body body) {
    unroll<kRows>([&](size_t r) __attribute__((always_inline)) {
      unroll<2>([&](size_t half) __attribute__((always_inline)) { body(r, half); });
    });
  }
  template <typename Left, typename Right>
  [[gnu::always_inline]] void scale(Left left, Right right) {
    for_each([&](size_t r, size_t half) {
      const __m512 factor = half == 0 ? left(r) : right(r);
      if constexpr (kScaledInC) {
        float* c = in_c(r, half);
        _mm512_storeu_ps(c, _mm512_fmadd_ps(unscaled(r, half), factor, load16(c)));
      } else {
        scaled_[r][half] = _mm512_fmadd_ps(unscaled(r, half), factor, scaled_[r][half]);
      }
    });
    clear();
  }
  [[gnu::always_inline]] void clear() {
    for_each([&](size_t r, size_t half) {
      chains_[0][r][half] = chains_[1][r][half] = _mm512_setzero_ps();
    });
  }
  [[gnu::always_inline]] __m512 unscaled(size_t r, size_t half) const {
    return _mm512_add_ps(chains_[0][r][half], chains_[1][r][half]);
  }
  float* in_c(size_t r, size_t half) const {
    return c_ + half * static_cast<size_t>(kTileFloats) + r * 16;
  }

  float* c_;
  __m512 chains_[2][kRows][2];
  __m512 scaled_[kRows][2];
};

// Names the part of k that has a scale of its own, with which its sum is multiplied.
enum class ScaleOf : uint8_t { kNothing, kGroup, kHalfStep };

// Adds a part of k to C of some rows; the first part sets C.  It calls add_step(sums, step within
// the part, group) for each step, and end_part(sums) after the last.
template <size_t kRows, ScaleOf kScaleOf, typename AddStep, typename EndPart>
inline __attribute__((always_inline)) void sum_part(
    const TileGemm& g, const Part& part, const Rows& rows, AddStep add_step, EndPart end_part) {
  Sums<kRows> sums;
  constexpr bool kScales = kScaleOf != ScaleOf::kNothing;
  sums.template start<kScales>(rows.c, part.first > 0);
  if constexpr (kScaleOf != ScaleOf::kGroup) {
    for (int64_t s = 0; s < part.steps; ++s) {
      add_step(sums, s, 0);
    }
  } else {
    for (int64_t s = 0; s < part.steps;) {
      const int64_t group = (part.first + s) / g.group_steps;
      const int64_t end = std::min((group + 1) * g.group_steps - part.first, part.steps);
      for (; s < end; ++s) {
        add_step(sums, s, group);
      }
      const __m512 left = load_group_scales(g, group, 0);
      const __m512 right = load_group_scales(g, group, 1);
      if (rows.scales != nullptr) {
        sums.scale(left, right, rows.scales + group, g.row_groups);
      } else {
        sums.scale(left, right);
      }
    }
  }
  end_part(sums);
  sums.template store<kScales>();
}
template <size_t kRows, ScaleOf kScaleOf, typename AddStep>
inline __attribute__((always_inline)) void sum_part(const TileGemm& g,
                                                    const Part& part,
                                                    const Rows& rows,
                                                    AddStep add_step) {
  sum_part<kRows, kScaleOf>(g, part, rows, add_step, [](Sums<kRows>&) {});
}

// Multiplies codes as they are decoded.
template <TileCode kCode, ScaleOf kScaleOf, size_t kRows>
void multiply_codes(const TileGemm& g, const Part& part, const Rows& rows) {
  sum_part<kRows, kScaleOf>(g, part, rows, [&](Sums<kRows>& sums, int64_t s, int64_t group) {
    const int64_t step = part.first + s;
    const std::byte* a = rows.a + s * kStepBytes;
    const StepFetch<unit_bytes(kCode)> fetch(g.units + step * unit_bytes(kCode), g);
    decode_unit<kCode>(
        g, group, step,
        [&](int row, __m512i left, __m512i right) {
          fetch.beside_row(row);
          sums.add(row, left, right, a);
        },
        [&](__m512 left, __m512 right) { sums.scale(left, right); });
  });
}

// The same by f32 products, also of bf16.
template <TileCode kCode, ScaleOf kScaleOf, bool kHasZeroPoints, size_t kRows>
void multiply_widened(const TileGemm& g, const Part& part, const Rows& rows) {
  alignas(64) float wide[kRows * static_cast<size_t>(kMostSteps * kWideFloats)];
  widen_lines<kRows>(rows.a, part.steps, wide);
  const float* a = wide;
  StepScales scales;
  const auto scale =
      [](Sums<kRows> & sums, const StepScales::Factors& factors) __attribute__((always_inline)) {
    sums.multiply(factors.left, factors.right);
  };
  const auto add_step = [&](Sums<kRows> & sums, int64_t s, int64_t group)
      __attribute__((always_inline)) {
    const int64_t step = part.first + s;
    const StepFetch<unit_bytes(kCode)> fetch(g.units + step * unit_bytes(kCode), g);
    if constexpr (kCode == TileCode::kMxfp4) {
      scale(sums, scales.to_step(g.step_scales + step * step_scale_bytes(kCode)));
    }
    const auto emit = [&](int row, const FloatRow& left, const FloatRow& right)
        __attribute__((always_inline)) {
      fetch.beside_row(row);
      sums.add(row, left, right, a);
    };
    const auto scale_half = [&](__m512 left, __m512 right) __attribute__((always_inline)) {
      sums.scale(left, right);
    };
    decode_unit_to_floats<kCode, kHasZeroPoints>(g, group, step, emit, scale_half);
    a += kRows * kWideFloats;
  };
  const auto end_part = [&](Sums<kRows> & sums) __attribute__((always_inline)) {
    if constexpr (kCode == TileCode::kMxfp4) {
      scale(sums, scales.to_one());
    }
  };
  sum_part<kRows, kScaleOf>(g, part, rows, add_step, end_part);
}

// Why it is never inlined: no product may be moved out of the scope of FlushSubnormals.
template <TileCode kCode, ScaleOf kScaleOf, bool kHasZeroPoints = false>
[[gnu::noinline]] void multiply_widened(const TileGemm& g) {
  for_each_part(g, [&](const Part& part) {
    for_each_rows(g, part, kMostWideRows, [&](const Rows& rows, int64_t count, bool) {
      with_rows<kMostWideRows>(count, [&]<size_t kRows>() {
        multiply_widened<kCode, kScaleOf, kHasZeroPoints, kRows>(g, part, rows);
      });
    });
  });
}

// A decoded part of k.
struct Tiles {
  const std::byte* units;
  const __m512* scales;  // kHalfStep: a pair for each half step
};

// kFetches: these tiles have yet to come into L1.
template <ScaleOf kScaleOf, size_t kRows, bool kFetches>
void multiply_tiles(
    const TileGemm& g, const Part& part, const Rows& rows, const Tiles& tiles, NextBlock& next) {
  sum_part<kRows, kScaleOf>(g, part, rows, [&](Sums<kRows>& sums, int64_t s, int64_t) {
    const std::byte* a = rows.a + s * kStepBytes;
    const std::byte* b = tiles.units + s * kStepBytes;
    if (!kFetches) {
      next.advance();
    }
    const StepFetch<kStepBytes> fetch(b, g);
#pragma GCC unroll 16  // the chain of each row is then a constant
    for (int row = 0; row < kTileRows; ++row) {
      if (kFetches) {
        fetch.beside_row(row);
      }
      sums.add(row, _mm512_loadu_si512(b + row * kTileRowBytes),
               _mm512_loadu_si512(b + kTileBytes + row * kTileRowBytes), a);
      if (kScaleOf == ScaleOf::kHalfStep && row % 8 == 7) {
        const __m512* scales = tiles.scales + s * 4 + row / 8 * 2;
        sums.scale(scales[0], scales[1]);
      }
    }
  });
}

template <ScaleOf kScaleOf, bool kFetches>
void multiply_decoded(const TileGemm& g, const Part& part, const Tiles& tiles, NextBlock& next) {
  for_each_rows(g, part, kMostRows, [&](const Rows& rows, int64_t count, bool is_first) {
    with_rows<kMostRows>(count, [&]<size_t kRows>() {
      if constexpr (kFetches) {
        if (is_first) {
          return multiply_tiles<kScaleOf, kRows, true>(g, part, rows, tiles, next);
        }
      }
      multiply_tiles<kScaleOf, kRows, false>(g, part, rows, tiles, next);
    });
  });
}

template <TileCode kCode, ScaleOf kScaleOf>
void multiply_few(const TileGemm& g) {
  for_each_part(g, [&](const Part& part) {
    for_each_rows(g, part, kMostRows, [&](const Rows& rows, int64_t count, bool) {
      with_rows<kMostRows>(
          count, [&]<size_t kRows>() { multiply_codes<kCode, kScaleOf, kRows>(g, part, rows); });
    });
  });
}

template <TileCode kCode, ScaleOf kScaleOf>
void multiply_many(const TileGemm& g) {
  alignas(64) std::byte units[kMostSteps * kStepBytes];
  __m512 scales[kMostSteps * 4];
  NextBlock next = next_block(g, num_passes(g, kMostRows));
  for_each_part(g, [&](const Part& part) {
    __m512* next_scale = scales;
    for (int64_t s = 0; s < part.steps; ++s) {
      const int64_t step = part.first + s;
      auto* out = reinterpret_cast<__m512i*>(units + s * kStepBytes);
      const StepFetch<unit_bytes(kCode)> fetch(g.units + step * unit_bytes(kCode), g);
      decode_unit<kCode>(
          g, g.group_steps > 0 ? step / g.group_steps : 0, step,
          [&](int row, __m512i left, __m512i right) {
            fetch.beside_row(row);
            _mm512_store_si512(out + row, left);
            _mm512_store_si512(out + kTileRows + row, right);
          },
          [&](__m512 left, __m512 right) {
            *next_scale++ = left;
            *next_scale++ = right;
          });
    }
    multiply_decoded<kScaleOf, false>(g, part, {units, scales}, next);
  });
}

template <TileCode kCode, ScaleOf kScaleOf>
void multiply_coded(const TileGemm& g) {
  if (prefers_f32_products<kCode>(g) && has_same_bits_in_f32<kCode>(g)) {
    if constexpr (kCode == TileCode::kInt4) {
      if (g.zero_points != nullptr) {
        return multiply_widened<kCode, kScaleOf, true>(g);
      }
    }
    return multiply_widened<kCode, kScaleOf>(g);
  }
  g.rows <= kMostFusedRows ? multiply_few<kCode, kScaleOf>(g) : multiply_many<kCode, kScaleOf>(g);
}

void multiply(const TileGemm& g, const TileEpilogue& e, TileRest&) {
  if (g.code == TileCode::kI8) {
    multiply_integers(g);
  } else if (g.code == TileCode::kBF16 && prefers_f32_products<TileCode::kBF16>(g)) {
    const FlushSubnormals flush;
    multiply_widened<TileCode::kBF16, ScaleOf::kNothing>(g);
  } else if (g.code == TileCode::kBF16) {
    NextBlock next = next_block(g, num_passes(g, kMostRows) - 1);
    for_each_part(g, [&](const Part& part) {
      multiply_decoded<ScaleOf::kNothing, true>(g, part,
                                                {g.units + part.first * kStepBytes, nullptr}, next);
    });
  } else {
    with_code(g.code, [&]<TileCode kCode>() {
      constexpr ScaleOf kScaleOf =
          kCode == TileCode::kNvfp4 ? ScaleOf::kHalfStep : ScaleOf::kNothing;
      if constexpr (kScaleOf == ScaleOf::kNothing) {
        if (g.group_steps > 0) {
          return multiply_coded<kCode, ScaleOf::kGroup>(g);
        }
      }
      multiply_coded<kCode, kScaleOf>(g);
    });
  }
  finisher_of(e)(e, g.c, 0, g.rows);
  finish_stores(e);
}

void finish(TileRest&) {}

}  // namespace

const TileKernels& avx512_tiles() {
  static const TileKernels kernels = {"avx512", Operand::kBF16, multiply, finish, exponents};
  return kernels;
}

}  // namespace moebius::cpu
