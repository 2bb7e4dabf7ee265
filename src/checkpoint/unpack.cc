// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/unpack.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

namespace moebius::checkpoint {

namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line
// So many bytes of each row are taken before the next rows, so that either side is walked in pieces
// of several lines, whichever of them has its rows farther apart.  One line is up to 1.4 times
// slower for results with rows of 2048 bytes, and whole rows are for sources with such rows.
constexpr int64_t kBandBytes = 512;

// Why vectors are spelled out: GCC 12 leaves loops over nibbles and over elements of 1 or 2 bytes
// scalar.
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kBlockRows = 8;
template <typename Element>
using Vector __attribute__((vector_size(kVectorBytes))) = Element;
template <typename Element>
using Block = Vector<Element>[kBlockRows];

template <typename Element>
Vector<Element> load(const std::byte* from) {
  Vector<Element> result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

// The elements of a and b in turn: those of their first halves, and those of their second ones.
Vector<uint8_t> interleave_low(Vector<uint8_t> a, Vector<uint8_t> b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Vector<uint8_t> interleave_high(Vector<uint8_t> a, Vector<uint8_t> b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}
Vector<uint16_t> interleave_low(Vector<uint16_t> a, Vector<uint16_t> b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
Vector<uint16_t> interleave_high(Vector<uint16_t> a, Vector<uint16_t> b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
Vector<uint32_t> interleave_low(Vector<uint32_t> a, Vector<uint32_t> b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
Vector<uint32_t> interleave_high(Vector<uint32_t> a, Vector<uint32_t> b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

// Eight rows of a vector become columns of eight elements, which follow each other.
// Why this transposes them: to take the elements of an array's halves in turn rotates the bits of
// their indices to the left by one, and the upper three bits are the row.
template <typename Element>
void transpose(Block<Element>& v) {
  for (int bit = 0; bit < 3; ++bit) {
    Block<Element> from;
    std::copy(std::begin(v), std::end(v), std::begin(from));
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = interleave_low(from[i], from[i + 4]);
      v[2 * i + 1] = interleave_high(from[i], from[i + 4]);
    }
  }
}

// Stores column c of a transposed block.
template <typename Element>
void store_column(std::byte* to, const Block<Element>& v, int64_t c) {
  constexpr int64_t kBytes = kBlockRows * int64_t{sizeof(Element)};
  std::memcpy(to, reinterpret_cast<const std::byte*>(v) + c * kBytes, kBytes);
}

// A tile is kRows rows of a line, and so is what it becomes.  A step turns kStepRows of its rows
// into as many columns, which begin at `to`; the rows of `to` are lines.

// Elements of 1, 2 or 4 bytes.
template <typename Element>
struct Elements {
  static constexpr int64_t kRows = kLine / sizeof(Element);
  static constexpr int64_t kStepRows = kBlockRows;

  static void step(const std::byte* from, int64_t stride, std::byte* to) {
    constexpr int64_t kColumns = kVectorBytes / sizeof(Element);
    for (int64_t part = 0; part < kLine / kVectorBytes; ++part) {
      Block<Element> v;
      for (int64_t i = 0; i < kBlockRows; ++i) {
        v[i] = load<Element>(from + i * stride + part * kVectorBytes);
      }
      transpose<Element>(v);
      for (int64_t c = 0; c < kColumns; ++c) {
        store_column<Element>(to + (part * kColumns + c) * kLine, v, c);
      }
    }
  }
};

// Words of eight nibbles in AWQ's order.
struct AwqWords {
  static constexpr int64_t kRows = 2 * kLine;
  static constexpr int64_t kStepRows = 2 * kBlockRows;

  // The first of two rows gets the low nibbles of both, and the second one gets the high ones.
  static void swap_nibbles(Vector<uint8_t>& first, Vector<uint8_t>& second) {
    using Words = Vector<uint16_t>;  // no processor shifts single bytes
    const Words moved = (((Words)first >> 4) ^ (Words)second) & 0x0f0f;
    first ^= (Vector<uint8_t>)(moved << 4);
    second ^= (Vector<uint8_t>)moved;
  }

  static void step(const std::byte* from, int64_t stride, std::byte* to) {
    constexpr int64_t kWords = kVectorBytes / 4;
    for (int64_t part = 0; part < kLine / kVectorBytes; ++part) {
      Block<uint8_t> low;
      Block<uint8_t> high;
      const std::byte* row = from + part * kVectorBytes;
      for (int64_t i = 0; i < kBlockRows; ++i, row += 2 * stride) {
        low[i] = load<uint8_t>(row);
        high[i] = load<uint8_t>(row + stride);
        swap_nibbles(low[i], high[i]);
      }
      transpose<uint8_t>(low);
      transpose<uint8_t>(high);
      for (int64_t word = 0; word < kWords; ++word) {
        std::byte* rows = to + (part * kWords + word) * 8 * kLine;
        for (int64_t i = 0; i < 4; ++i) {
          store_column<uint8_t>(rows + kAwqOrder[2 * i] * kLine, low, 4 * word + i);
          store_column<uint8_t>(rows + kAwqOrder[2 * i + 1] * kLine, high, 4 * word + i);
        }
      }
    }
  }
};

template <bool kWrites>
void prefetch(const std::byte* at, int64_t stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r, at += stride) {
    __builtin_prefetch(at, kWrites);
  }
}

// Why inline: where `bytes` is constant, a row is a few instructions.
inline void copy_rows(const std::byte* from,
                      int64_t from_stride,
                      std::byte* to,
                      int64_t to_stride,
                      int64_t rows,
                      int64_t bytes) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(bytes));
  }
}

// Transposes `rows` rows of `row_bytes` bytes.  Tiles at the edges are copied into whole ones
// first. Why results go through `out`: each line of dst is then written at once.
template <typename Tile>
void transpose_tiles(const std::byte* src,
                     int64_t src_stride,
                     int64_t rows,
                     int64_t row_bytes,
                     std::byte* dst,
                     int64_t dst_stride) {
  const auto out_row = [](int64_t byte) { return byte * Tile::kRows / kLine; };
  const auto out_byte = [](int64_t row) { return row * kLine / Tile::kRows; };
  alignas(kLine) std::array<std::byte, Tile::kRows * kLine> out;
  alignas(kLine) std::array<std::byte, Tile::kRows * kLine> padded{};
  for (int64_t band = 0; band < row_bytes; band += kBandBytes) {
    const int64_t band_end = std::min(row_bytes, band + kBandBytes);
    for (int64_t row = 0; row < rows; row += Tile::kRows) {
      const int64_t num_rows = std::min(Tile::kRows, rows - row);
      for (int64_t at = band; at < band_end; at += kLine) {
        const int64_t num_bytes = std::min(kLine, band_end - at);
        const bool is_whole = num_rows == Tile::kRows && num_bytes == kLine;
        const std::byte* from = src + row * src_stride + at;
        std::byte* to = dst + out_row(at) * dst_stride + out_byte(row);
        int64_t stride = src_stride;
        if (!is_whole) {
          copy_rows(from, stride, padded.data(), kLine, num_rows, num_bytes);
          from = padded.data();
          stride = kLine;
        }
        // From a row of this tile to that of the next one.
        const int64_t next = at + kLine < band_end ? kLine : Tile::kRows * src_stride - (at - band);
        for (int64_t r = 0; r < num_rows; r += Tile::kStepRows) {
          if (is_whole) {
            prefetch<false>(from + r * stride + next, stride, Tile::kStepRows);
            prefetch<true>(to + r * dst_stride, dst_stride, Tile::kStepRows);
          }
          Tile::step(from + r * stride, stride, out.data() + out_byte(r));
        }
        if (is_whole) {
          copy_rows(out.data(), kLine, to, dst_stride, Tile::kRows, kLine);
        } else {
          copy_rows(out.data(), kLine, to, dst_stride, out_row(num_bytes), out_byte(num_rows));
        }
      }
    }
  }
}

}  // namespace

void transpose_elements(int64_t element_bytes,
                        const std::byte* src,
                        int64_t src_stride,
                        std::byte* dst,
                        int64_t dst_stride,
                        MatrixSize size) {
  const int64_t row_bytes = size.rows * element_bytes;
  if (element_bytes == 1) {
    transpose_tiles<Elements<uint8_t>>(src, src_stride, size.cols, row_bytes, dst, dst_stride);
  } else if (element_bytes == 2) {
    transpose_tiles<Elements<uint16_t>>(src, src_stride, size.cols, row_bytes, dst, dst_stride);
  } else {
    assert(element_bytes == 4);
    transpose_tiles<Elements<uint32_t>>(src, src_stride, size.cols, row_bytes, dst, dst_stride);
  }
}

void flip_signs(std::byte* data, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    data[i] ^= std::byte{0x80};
  }
}

void unpack_awq_words(const std::byte* src,
                      int64_t src_stride,
                      std::byte* dst,
                      int64_t dst_stride,
                      int64_t words,
                      int64_t cols) {
  transpose_tiles<AwqWords>(src, src_stride, cols, words * 4, dst, dst_stride);
}

}  // namespace moebius::checkpoint
