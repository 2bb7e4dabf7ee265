// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels that multiply f32 values, or int8 codes, on any processor.  The loops are written in
// vector types of the compiler; a file that includes this header gives them the instruction set it
// is compiled for.  Everything here is static, so that no other file can end up with those
// instructions.
//
// The weights of a part of k are decoded into L1 once, then all rows are multiplied with them.  A
// row is summed in the same order whatever rows are beside it.
//
// Longer than 500 lines: it is one set of kernels, and decoding each format takes its own code.
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cstring>
#include <string_view>

#ifdef __AVX512VNNI__
#include "experts/cpu/tiles/avx512_rows.h"
#endif
#include "experts/cpu/tiles/tile_epilogue.h"
#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kMostRows = 8;  // 16 sums, and the two registers of a row of weights
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kMostRows = 3;  // 12 sums
#else
constexpr int kLanes = 4;
constexpr int kMostRows = 1;
#endif
constexpr int kVectors = static_cast<int>(kBlockColumns) / kLanes;  // per row of C
constexpr int kChunks = 16 / kLanes;                                // per row of a tile

// The decoded weights of a step are two tiles [32][16] of f32, or of pairs of int16, those of even
// k before those of odd k.
constexpr int64_t kStepRows = 32;
constexpr int64_t kDecodedTile = kStepRows * 16;
constexpr int64_t kDecodedStep = 2 * kDecodedTile;
constexpr int64_t kPartSteps = 4;  // 16 KiB of decoded weights
// With up to this many rows, bf16 weights are widened again for the next rows: that costs less than
// storing them.
constexpr int64_t kMostStoredRows = 4 * kMostRows;
// The hardware's own prefetching stops at each page, so we prefetch this far ahead.  A prefetch
// past the end of the weights is harmless.
constexpr int64_t kPrefetchAhead = 4096;

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfWords __attribute__((vector_size(kLanes * 2)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

template <typename Vector>
inline Vector load(const void* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
template <typename Vector>
inline void store(void* to, Vector v) {
  __builtin_memcpy(to, &v, sizeof(v));
}
inline Floats spread(float value) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(value);
#elif defined(__AVX2__)
  return (Floats)_mm256_set1_ps(value);
#else
  return Floats{} + value;
#endif
}
inline Ints spread(int32_t value) {
#if defined(__AVX512F__)
  return (Ints)_mm512_set1_epi32(value);
#elif defined(__AVX2__)
  return (Ints)_mm256_set1_epi32(value);
#else
  return Ints{} + value;
#endif
}
inline Floats as_floats(Words bits) {
  return (Floats)bits;
}
inline Floats to_floats(Words values) {
  return __builtin_convertvector((Ints)values, Floats);
}
// Takes `yes` in lanes where `mask` is all ones, and `no` where it is zero.
inline Words select(Ints mask, Words yes, Words no) {
  const auto m = (Words)mask;
  return (yes & m) | (no & ~m);
}
inline Words bytes_to_words(const void* bytes) {
  return __builtin_convertvector(load<Bytes>(bytes), Words);
}

inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return sum + a * b;
#endif
}

// Adds the products of two pairs of int16 in each lane.
inline Ints multiply_add(Ints a, Ints b, Ints sum) {
#if defined(__AVX512F__)
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const auto low = [](Ints v) { return (Ints)((Words)v << 16) >> 16; };
  return sum + low(a) * low(b) + (a >> 16) * (b >> 16);
#endif
}

// Widens numbers of fewer bits.  Their magnitude is a code with `kMantissa` bits of mantissa;
// subnormal codes are integers times 2^kLeast; the sign is in bit 31.
template <int kMantissa, int kBias, int kLeast>
inline Words small_float(Words magnitude, Words sign) {
  const Words normal = (magnitude << (23 - kMantissa)) + (uint32_t{127 - kBias} << 23);
  constexpr float kUnit = 1.0f / static_cast<float>(1 << -kLeast);
  const auto subnormal = (Words)(to_floats(magnitude) * kUnit);
  return select((Ints)magnitude < (1 << kMantissa), subnormal, normal) | sign;
}

inline Floats f16_to_floats(Words bits) {
  const Words magnitude = bits & 0x7fff;
  const Words sign = (bits & 0x8000) << 16;
  const Words finite = small_float<10, 15, -24>(magnitude, sign);
  const Words other = (magnitude << 13) | sign | 0x7f800000;
  return as_floats(select((Ints)magnitude >= 0x7c00, other, finite));
}

inline Floats e4m3_to_floats(Words magnitude, Words sign) {
  const Words value = small_float<3, 7, -9>(magnitude, sign);
  return as_floats(select((Ints)magnitude == 0x7f, value | 0x7fc00000, value));
}

inline Floats e8m0_to_floats(Words codes) {
  Words bits = select((Ints)codes == 0, codes + 0x00400000, codes << 23);  // 2^-127 is subnormal
  bits = select((Ints)codes == 255, (codes & 0) + 0x7fc00000, bits);
  return as_floats(bits);
}

// Widens the lowest four bits of `codes`, which are e2m1.
inline Floats e2m1_to_floats(Words codes) {
#if defined(__AVX512F__)
  const __m512 values =
      _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  return (Floats)_mm512_permutexvar_ps((__m512i)codes, values);
#elif defined(__AVX2__)
  const __m256 values = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const auto magnitude = (Words)_mm256_permutevar8x32_ps(values, (__m256i)codes);
  return as_floats(magnitude | (codes & 8) << 28);
#else
  return as_floats(small_float<1, 1, -1>(codes & 7, (codes & 8) << 28));
#endif
}

// Loads scales [i, i + kLanes) of a group.
inline Floats load_scales(const std::byte* scales, DType dtype, int64_t i) {
  const auto halves = [&] {
    return __builtin_convertvector(load<HalfWords>(scales + i * 2), Words);
  };
  switch (dtype) {
    case DType::kBF16:
      return as_floats(halves() << 16);
    case DType::kF16:
      return f16_to_floats(halves());
    case DType::kE8M0:
      return e8m0_to_floats(bytes_to_words(scales + i));
    default:
      return load<Floats>(scales + i * 4);
  }
}

// Steps [first, first + steps) of k, all of one group.
struct Part {
  int64_t first;
  int64_t steps;
  int64_t group;
};

// Says from where and to where columns [column, column + kLanes) of one tile are decoded.
struct Columns {
  const TileGemm& gemm;
  const Part& part;
  int64_t step;
  int64_t tile;
  int64_t column;  // in the tile
  float* out;      // of the first k

  // The first of these columns' words in the tile's share of a unit.
  const std::byte* words(TileCode code) const {
    return gemm.units + step * unit_bytes(code) + tile * unit_bytes(code) / 2 + column * 4;
  }
  const std::byte* step_scales(TileCode code, int64_t half) const {
    return gemm.step_scales + step * step_scale_bytes(code) + half * kBlockColumns + tile * 16 +
           column;
  }
  Words zero_points(uint32_t if_none) const {
    const uint8_t* all = gemm.zero_points;
    return all != nullptr ? bytes_to_words(all + part.group * kBlockColumns + tile * 16 + column)
                          : Words{} + if_none;
  }
  void put(int64_t k, Floats values) const { store(out + k * 16, values); }
};

template <TileCode kCode>
inline void decode_pairs(const Columns& columns) {
  const std::byte* from = columns.words(kCode);
  for (int64_t row = 0; row < kTileRows; ++row) {
    const auto pair = load<Words>(from + row * kTileRowBytes);
    if constexpr (kCode == TileCode::kBF16) {
      columns.put(2 * row, as_floats(pair << 16));
      columns.put(2 * row + 1, as_floats(pair & 0xffff0000));
    } else {
      columns.put(2 * row, f16_to_floats(pair & 0xffff));
      columns.put(2 * row + 1, f16_to_floats(pair >> 16));
    }
  }
}

// Decodes two tile rows.  kAny: some code of them is zero, subnormal or NaN.
template <bool kAny>
inline void decode_e4m3_pair(const Columns& columns, int64_t pair, Words codes) {
  const auto value = [](Words magnitude, Words sign) {
    return kAny ? e4m3_to_floats(magnitude, sign)
                : as_floats(((magnitude << 20) + (uint32_t{120} << 23)) | sign);
  };
  // Codes of the even row have their bits in another order, see kF8E4M3.
  const auto even = [&](Words byte) {
    return value((byte & 7) << 4 | (byte >> 3 & 0xf), (byte & 0x80) << 24);
  };
  const auto odd = [&](Words byte) { return value(byte & 0x7f, (byte & 0x80) << 24); };
  columns.put(4 * pair, even(codes));
  columns.put(4 * pair + 1, even(codes >> 16));
  columns.put(4 * pair + 2, odd(codes >> 8));
  columns.put(4 * pair + 3, odd(codes >> 24));
}

inline void decode_e4m3(const Columns& columns) {
  const std::byte* from = columns.words(TileCode::kF8E4M3);
  const int others = columns.gemm.others[columns.step] >> (columns.tile * 8);
  for (int64_t pair = 0; pair < kTileRows / 2; ++pair) {
    const auto codes = load<Words>(from + pair * kTileRowBytes);
    if ((others >> pair & 1) == 0) {
      decode_e4m3_pair<false>(columns, pair, codes);
    } else {
      decode_e4m3_pair<true>(columns, pair, codes);
    }
  }
}

inline void decode_int8(const Columns& columns) {
  // Eight bytes of a row are followed by eight of the next row.
  const std::byte* from = columns.words(TileCode::kI8AsBF16);
  const Words zero_points = columns.zero_points(128);
  for (int64_t row = 0; row < kTileRows; ++row) {
    const std::byte* at = from + row / 2 * kTileRowBytes + row % 2 * 8;
    std::byte pieces[kLanes * 2];
    for (int i = 0; i < kLanes / 4; ++i) {
      __builtin_memcpy(pieces + i * 8, at + i * 16, 8);
    }
    const Words pair = __builtin_convertvector(load<HalfWords>(pieces), Words);
    columns.put(2 * row, to_floats((pair & 0xff) - zero_points));
    columns.put(2 * row + 1, to_floats((pair >> 8) - zero_points));
  }
}

template <TileCode kCode>
inline void decode_nibbles(const Columns& columns) {
  const std::byte* from = columns.words(kCode);
  Words zero_points{};
  Floats scales{};
  if constexpr (kCode == TileCode::kInt4) {
    zero_points = columns.zero_points(8);
  } else if constexpr (kCode == TileCode::kMxfp4) {
    scales = e8m0_to_floats(bytes_to_words(columns.step_scales(kCode, 0)));
  }
  for (int64_t block = 0; block < 4; ++block) {
    if (kCode == TileCode::kNvfp4 && block % 2 == 0) {
      const Words codes = bytes_to_words(columns.step_scales(kCode, block / 2));
      scales = e4m3_to_floats(codes & 0x7f, (codes & 0x80) << 24);
    }
    const auto codes = load<Words>(from + block * kTileRowBytes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) {
      const Words code = codes >> static_cast<uint32_t>(4 * i);
      const int64_t k = 8 * block + 2 * (i % 4) + i / 4;
      if constexpr (kCode == TileCode::kInt4) {
        columns.put(k, to_floats((code & 0xf) - zero_points));
      } else {
        columns.put(k, e2m1_to_floats(code) * scales);
      }
    }
  }
}

// Splits lanes of four int8 each into the int16 pairs of even k and those of odd k.
inline void split_int8(const std::byte* from, int32_t* even, int32_t* odd) {
  const auto codes = load<Shorts>(from);
  store(even, (Shorts)((Words)codes << 8 & 0xff00ff00) >> 8);
  store(odd, codes >> 8);
}

inline void decode_columns(const Columns& columns) {
  switch (columns.gemm.code) {
    case TileCode::kBF16:
      return decode_pairs<TileCode::kBF16>(columns);
    case TileCode::kF16:
      return decode_pairs<TileCode::kF16>(columns);
    case TileCode::kF8E4M3:
      return decode_e4m3(columns);
    case TileCode::kI8AsBF16:
      return decode_int8(columns);
    case TileCode::kInt4:
      return decode_nibbles<TileCode::kInt4>(columns);
    case TileCode::kMxfp4:
      return decode_nibbles<TileCode::kMxfp4>(columns);
    case TileCode::kNvfp4:
      return decode_nibbles<TileCode::kNvfp4>(columns);
    case TileCode::kI8: {
      const std::byte* from = columns.words(TileCode::kI8);
      auto* out = reinterpret_cast<int32_t*>(columns.out);
      for (int64_t row = 0; row < kTileRows; ++row) {
        split_int8(from + row * kTileRowBytes, out + row * 16, out + (kTileRows + row) * 16);
      }
      return;
    }
    case TileCode::kF32:
      return;  // these weights are multiplied where they lie
  }
}

// Returns the decoded weights of a part, which are in `room` unless they are stored in that form.
inline const float* decode_part(const TileGemm& g, const Part& part, float* room) {
  if (g.code == TileCode::kF32) {
    return reinterpret_cast<const float*>(g.units + part.first * unit_bytes(g.code));
  }
  for (int64_t s = 0; s < part.steps; ++s) {
    const std::byte* unit = g.units + (part.first + s) * unit_bytes(g.code);
    for (int64_t line = 0; line < unit_bytes(g.code); line += kTileRowBytes) {
      __builtin_prefetch(unit + kPrefetchAhead + line);
    }
    for (int64_t tile = 0; tile < 2; ++tile) {
      for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
        decode_columns({g, part, part.first + s, tile, chunk * kLanes,
                        room + s * kDecodedStep + tile * kDecodedTile + chunk * kLanes});
      }
    }
  }
  return room;
}

// Some rows of a part of k.
template <typename Value>
struct Rows {
  const Value* a[kMostRows];       // lines of 16 values, Panels::kLineStride apart
  Value* c[kMostRows];             // 16 columns, and kTileFloats further on the other 16
  const float* scales[kMostRows];  // of the row in this group, or null: 1
};

// Reads weights as decode_part() leaves them.
template <typename Vector>
struct DecodedWeights {
  const float* at;

  Vector load(int64_t line, int64_t k, int v) const {
    return cpu::load<Vector>(at + line / 2 * kDecodedStep + line % 2 * 256 +
                             v / kChunks * kDecodedTile + k * 16 + v % kChunks * kLanes);
  }
};

// Reads bf16 weights as they are stored.
struct StoredBF16 {
  const std::byte* at;

  Floats load(int64_t line, int64_t k, int v) const {
    const std::byte* row = at + line / 2 * kStepBytes + v / kChunks * kTileBytes +
                           (line % 2 * 8 + k / 2) * kTileRowBytes;
    if (k % 2 == 0 && v % kChunks == 0) {
      __builtin_prefetch(row + kPrefetchAhead);
    }
    const auto pair = cpu::load<Words>(row + v % kChunks * kLanes * 4);
    return as_floats(k % 2 == 0 ? pair << 16 : pair & 0xffff0000);
  }
};

// Adds A * B * scales to C.  column_scales: [32], or null: 1; integers have none.
template <int kRows, typename Panels, typename Weights>
inline void add_part(const Rows<typename Panels::Value>& rows,
                     const Weights& weights,
                     int64_t steps,
                     const float* column_scales) {
  using Vector = typename Panels::Vector;
  Vector sums[static_cast<size_t>(kRows)][size_t{kVectors}] = {};
  for (int64_t line = 0; line < 2 * steps; ++line) {
    for (int64_t pair = 0; pair < 16; pair += 2) {
#pragma GCC unroll 2
      for (int64_t k = pair; k < pair + 2; ++k) {
        Vector values[static_cast<size_t>(kRows)];
        for (int r = 0; r < kRows; ++r) {
          values[r] = spread(rows.a[r][line * Panels::kLineStride + k]);
        }
        for (int v = 0; v < kVectors; ++v) {
          const Vector weight = weights.load(line, k, v);
          for (int r = 0; r < kRows; ++r) {
            sums[r][v] = multiply_add(values[r], weight, sums[r][v]);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      auto* c = rows.c[r] + v / kChunks * kTileFloats + v % kChunks * kLanes;
      const auto before = load<Vector>(c);
      if constexpr (Panels::kHasScales) {
        if (column_scales != nullptr) {
          Vector scales = load<Vector>(column_scales + v * kLanes);
          scales = rows.scales[r] != nullptr ? scales * *rows.scales[r] : scales;
          store(c, multiply_add(sums[r][v], scales, before));
          continue;
        }
      }
      store(c, before + sums[r][v]);
    }
  }
}

template <int kRows, typename Panels, typename Weights>
inline void add_some(const Rows<typename Panels::Value>& rows,
                     int count,
                     const Weights& weights,
                     int64_t steps,
                     const float* column_scales) {
  if constexpr (kRows > 0) {
    count == kRows ? add_part<kRows, Panels>(rows, weights, steps, column_scales)
                   : add_some<kRows - 1, Panels>(rows, count, weights, steps, column_scales);
  }
}

// Reads panels of f32.
struct FloatPanels {
  using Value = float;
  using Vector = Floats;
  static constexpr bool kHasScales = true;
  static constexpr int64_t kLineStride = kStepBytes / 4;

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

  int32_t split[kMostRows][kPartSteps * kStepRows];
};

// Adds a part of k to C of all rows, as many rows at a time as there are registers for.
template <typename Panels, typename Weights>
inline void multiply_part(const TileGemm& g,
                          const Part& part,
                          const Weights& weights,
                          const float* column_scales,
                          Panels& panels) {
  using Value = typename Panels::Value;
  for (int64_t first = 0; first < g.rows;) {
    const int64_t left = g.rows - first;
    const int64_t passes = (left + kMostRows - 1) / kMostRows;
    const auto count = static_cast<int>((left + passes - 1) / passes);
    Rows<Value> rows{};
    for (int i = 0; i < count; ++i) {
      const int64_t r = first + i;
      rows.a[i] = panels.row(g, part, r, i);
      rows.c[i] =
          reinterpret_cast<Value*>(g.c) + r / kTileRows * 2 * kTileFloats + r % kTileRows * 16;
      rows.scales[i] =
          g.row_scales != nullptr ? g.row_scales + r * g.row_groups + part.group : nullptr;
    }
    add_some<kMostRows, Panels>(rows, count, weights, part.steps, column_scales);
    first += count;
  }
}

template <typename Panels>
inline void multiply_panels(const TileGemm& g) {
  using Vector = typename Panels::Vector;
  alignas(64) float room[kPartSteps * kDecodedStep];
  float column_scales[kBlockColumns];
  Panels panels;
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  std::memset(g.c, 0, static_cast<size_t>(num_panels * kPanelFloats) * sizeof(float));
  const int64_t group_steps = g.group_steps > 0 ? g.group_steps : g.steps;
  Part part{};
  for (; part.first < g.steps; part.first += part.steps) {
    part.group = part.first / group_steps;
    const int64_t group_end = (part.group + 1) * group_steps;
    const int64_t end = group_end < g.steps ? group_end : g.steps;
    part.steps = end - part.first < kPartSteps ? end - part.first : kPartSteps;
    if constexpr (Panels::kHasScales) {
      if (g.code == TileCode::kBF16 && g.rows <= kMostStoredRows) {
        const StoredBF16 stored = {g.units + part.first * kStepBytes};
        multiply_part(g, part, stored, nullptr, panels);
        continue;
      }
    }
    const DecodedWeights<Vector> decoded = {decode_part(g, part, room)};
    for (int v = 0; g.group_steps > 0 && v < kVectors; ++v) {
      store(column_scales + v * kLanes,
            load_scales(g.group_scales, g.scale_dtype, part.group * kBlockColumns + v * kLanes));
    }
    multiply_part(g, part, decoded, g.group_steps > 0 ? column_scales : nullptr, panels);
  }
}

inline void multiply_integers(const TileGemm& g) {
#ifdef __AVX512VNNI__
  avx512::multiply_integers(g);
#else
  multiply_panels<IntPanels>(g);
#endif
}

void multiply(const TileGemm& g, const TileEpilogue& e, TileRest&) {
  g.code == TileCode::kI8 ? multiply_integers(g) : multiply_panels<FloatPanels>(g);
  finish_rows(e, g.c, 0, g.rows);
}

void finish(TileRest&) {}

}  // namespace

}  // namespace moebius::cpu
