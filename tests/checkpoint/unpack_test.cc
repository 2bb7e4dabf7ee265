// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Transposes matrices of all kinds of sizes, at odd addresses and strides, and compares them with
// the definitions of checkpoint/unpack.h.
#include "checkpoint/unpack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace moebius::checkpoint {
namespace {

constexpr std::byte kUntouched{0xe7};

// A matrix of bytes that begins at an odd address, with bytes after each row that are not its own.
struct Matrix {
  int64_t rows;
  int64_t row_bytes;
  int64_t stride = row_bytes + 5;
  std::vector<std::byte> bytes =
      std::vector<std::byte>(static_cast<size_t>(1 + rows * stride), kUntouched);

  std::byte* data() { return bytes.data() + 1; }
  std::byte& at(int64_t row, int64_t byte) { return data()[row * stride + byte]; }
};

Matrix random_matrix(int64_t rows, int64_t row_bytes) {
  Matrix result{rows, row_bytes};
  std::mt19937 random(static_cast<uint32_t>(rows * 1000 + row_bytes));
  for (std::byte& byte : result.bytes) {
    byte = static_cast<std::byte>(random());
  }
  return result;
}

// Sizes around those of blocks, lines, tiles and bands.
constexpr int64_t kSizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127, 129, 300, 530};

TEST(Unpack, ElementsAreTransposedAndNothingElseIsWritten) {
  for (const int64_t element : {1, 2, 4}) {
    for (const int64_t rows : kSizes) {
      for (const int64_t cols : kSizes) {
        SCOPED_TRACE(testing::Message() << element << " bytes, " << rows << " x " << cols);
        Matrix src = random_matrix(cols, rows * element);
        Matrix expected{rows, cols * element};
        Matrix result = expected;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            std::memcpy(&expected.at(r, c * element), &src.at(c, r * element),
                        static_cast<size_t>(element));
          }
        }
        transpose_elements(element, src.data(), src.stride, result.data(), result.stride,
                           {rows, cols});
        ASSERT_TRUE(result.bytes == expected.bytes);
      }
    }
  }
}

TEST(Unpack, AwqNibblesComeInTheOrderOfTheirRowsAndNothingElseIsWritten) {
  for (const int64_t words : {1, 2, 3, 4, 15, 16, 17, 48, 127, 129, 150}) {
    for (const int64_t cols : {2, 6, 14, 16, 18, 30, 64, 126, 128, 130, 254, 258, 512}) {
      SCOPED_TRACE(testing::Message() << words << " words, " << cols << " columns");
      Matrix src = random_matrix(cols, words * 4);
      Matrix expected{words * 8, cols / 2};
      Matrix result = expected;
      for (int64_t k = 0; k < cols; ++k) {
        for (int64_t j = 0; j < words; ++j) {
          uint32_t word = 0;
          std::memcpy(&word, &src.at(k, j * 4), sizeof(word));
          for (int i = 0; i < 8; ++i) {
            const auto nibble = static_cast<std::byte>((word >> (4 * i)) & 15u);
            std::byte& byte = expected.at(8 * j + kAwqOrder[i], k / 2);
            byte = k % 2 == 0 ? nibble : byte | nibble << 4;
          }
        }
      }
      unpack_awq_words(src.data(), src.stride, result.data(), result.stride, words, cols);
      ASSERT_TRUE(result.bytes == expected.bytes);
    }
  }
}

TEST(Unpack, FlippingSignsAdds128) {
  std::vector<std::byte> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i);
  }
  flip_signs(bytes.data() + 1, 298);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool is_flipped = i >= 1 && i < 299;
    EXPECT_EQ(bytes[i], static_cast<std::byte>(i + (is_flipped ? 128 : 0))) << i;
  }
}

}  // namespace
}  // namespace moebius::checkpoint
