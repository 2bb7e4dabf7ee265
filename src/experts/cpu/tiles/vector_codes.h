// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes the weights of a part of k into L1, for the vector tile kernels (vector_tiles.h).
#pragma once

#include "experts/cpu/tiles/vector_rows.h"
#include "experts/cpu/tiles/vector_types.h"

namespace moebius::cpu {

namespace {

// The decoded weights of a step are two tiles [32][16] of f32, or of pairs of int16, those of even
// k before those of odd k.
constexpr int64_t kDecodedTile = kStepRows * 16;
constexpr int64_t kDecodedStep = 2 * kDecodedTile;
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

// Decodes two tile rows.  kHasNaN: some code of them is NaN.
template <bool kHasNaN>
inline void decode_e4m3_pair(const Columns& columns, int64_t pair, Words codes) {
  // The bits of a code stand for 2^-120 times its value where f32 has them.
  const auto value = [](Words magnitude, Words sign) {
    return kHasNaN ? e4m3_to_floats(magnitude, sign) : as_floats(magnitude << 20 | sign) * 0x1p120f;
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
      __builtin_prefetch(unit + kPartAhead + line);
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

}  // namespace

}  // namespace moebius::cpu
