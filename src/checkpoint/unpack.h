// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Moves stored elements to where kernels read them: pure functions on memory, which may be
// unaligned.  Words are 32 bits, little-endian, and so are files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moebius::checkpoint {

struct MatrixSize {
  int64_t rows, cols;
};
// dst[r][c] = src[c][r] for elements of 1, 2 or 4 bytes; `size` is that of dst.  Strides are in
// bytes.
void transpose_elements(int64_t element_bytes,
                        const std::byte* src,
                        int64_t src_stride,
                        std::byte* dst,
                        int64_t dst_stride,
                        MatrixSize size);

// Codes plus 128 become signed codes, and signed ones codes plus 128.
void flip_signs(std::byte* data, int64_t n);

// The row of eight that nibble i of AWQ's words belongs to.
inline constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// Word j of row k of `src` holds rows 8j to 8j+7 of column k, in AWQ's order.  Writes 8 * words
// rows of `cols` nibbles each, the first one in the low half of a byte.  REQUIRES: cols is even.
void unpack_awq_words(const std::byte* src,
                      int64_t src_stride,
                      std::byte* dst,
                      int64_t dst_stride,
                      int64_t words,
                      int64_t cols);

}  // namespace moebius::checkpoint
