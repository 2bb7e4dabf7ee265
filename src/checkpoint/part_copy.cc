// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/part_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/unpack.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

bool is_e8m0(const StoredMatrix& from) {
  return from.dtype == DType::kE8M0 || from.dtype == DType::kU8;
}

// Bits of a word of packed zero points to the left of that of row r % rows_per_word.
int shift_of(Unpack unpack, int bits, int64_t row) {
  const auto sub = static_cast<size_t>(row % (32 / bits));
  if (unpack != Unpack::kAwqRows) {
    return static_cast<int>(sub) * bits;
  }
  const auto* at = std::find(std::begin(kAwqOrder), std::end(kAwqOrder), static_cast<int>(sub));
  return static_cast<int>(at - std::begin(kAwqOrder)) * bits;
}

uint32_t mask_of(int bits) {
  return (1u << bits) - 1;
}

uint32_t word_at(const Tensor& bytes, const StoredMatrix& from, int64_t row, int64_t col) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.bytes() + from.byte_of(row, col), sizeof(word));
  return word;
}

// The words of packed zero points.
Range words_of(Range rows, int bits) {
  const int64_t per_word = 32 / bits;
  return {rows.begin / per_word, (rows.end + per_word - 1) / per_word};
}

void unpack_zero_points(const PartCopy& copy) {
  const StoredMatrix& from = copy.from;
  const Tensor bytes = from.files->bytes(from.tensor);
  const int bits = copy.zero_point_bits;
  const int64_t per_word = 32 / bits;
  const auto offset = static_cast<uint32_t>(copy.zero_point_offset);
  std::array<int, 8> shifts{};
  for (int64_t i = 0; i < per_word; ++i) {
    shifts[static_cast<size_t>(i)] = shift_of(copy.unpack, bits, i);
  }
  const Range words = words_of(copy.rows, bits);
  for (int64_t w = words.begin; w < words.end; ++w) {
    const int64_t first = std::max(copy.rows.begin, w * per_word);
    const int64_t last = std::min(copy.rows.end, (w + 1) * per_word);
    for (int64_t c = copy.cols.begin; c < copy.cols.end; ++c) {
      const int64_t col = copy.order ? (*copy.order)[static_cast<size_t>(c)] : c;
      const uint32_t word = word_at(bytes, from, w, col);
      std::byte* out = copy.to + (first - copy.rows.begin) * copy.stride + c - copy.cols.begin;
      for (int64_t r = first; r < last; ++r, out += copy.stride) {
        const uint32_t stored =
            (word >> shifts[static_cast<size_t>(r - w * per_word)]) & mask_of(bits);
        if (stored + offset > 0xff) {
          throw InvalidArgument(
              fmt::format("{} holds the zero point {} of row {} and group {}, expected 0 to {}",
                          from.label, stored, r, col, 0xff - copy.zero_point_offset));
        }
        *out = static_cast<std::byte>(stored + offset);
      }
    }
  }
  from.release(words, copy.cols);
}

void unpack_awq(const PartCopy& copy) {
  const StoredMatrix& from = copy.from;
  unpack_awq_words(
      from.files->bytes(from.tensor).bytes() + from.byte_of(copy.rows.begin, copy.cols.begin),
      from.stride, copy.to, copy.stride, copy.rows.size(), copy.cols.size());
  from.release(copy.rows, copy.cols);
}

void copy_flipped(const PartCopy& copy) {
  copy.from.copy_to(copy.to, copy.stride, copy.rows, copy.cols);
  for (int64_t r = 0; r < copy.rows.size(); ++r) {
    flip_signs(copy.to + r * copy.stride, copy.cols.size() * bits(copy.from.dtype) / 8);
  }
  copy.from.release(copy.rows, copy.cols);
}

// Copies scales whose elements, columns or rows are others in the result.
void copy_scales(const PartCopy& copy, FiniteWeights& finite) {
  const StoredMatrix& from = copy.from;
  const int64_t stored_bytes = bits(from.dtype) / 8;
  const Range cols = copy.order ? Range{0, from.cols} : copy.cols;
  const bool widens = is_e8m0(from) && copy.dtype == DType::kF32;
  std::vector<std::byte> stored(static_cast<size_t>(copy.rows.size() * cols.size() * stored_bytes));
  finite.copy(from, is_e8m0(from) ? DType::kE8M0 : from.dtype, copy.rows, cols, stored.data(),
              cols.size() * stored_bytes, copy.expert);
  const int64_t bytes = bits(copy.dtype) / 8;
  for (int64_t r = 0; r < copy.num_rows; ++r) {
    const int64_t stored_row = std::min(r, copy.rows.size() - 1);  // one may stand for all
    for (int64_t c = 0; c < copy.cols.size(); ++c) {
      const int64_t col = copy.order ? (*copy.order)[static_cast<size_t>(copy.cols.begin + c)] : c;
      const std::byte* source = stored.data() + (stored_row * cols.size() + col) * stored_bytes;
      std::byte* out = copy.to + r * copy.stride + c * bytes;
      if (widens) {
        const float value = e8m0_to_float(static_cast<uint8_t>(*source));
        std::memcpy(out, &value, sizeof(value));
      } else {
        std::memcpy(out, source, static_cast<size_t>(bytes));
      }
    }
  }
}

// Expects every zero point to be the one that a symmetric scheme has.
void check_zero_points(const PartCopy& copy) {
  const StoredMatrix& from = copy.from;
  const Tensor bytes = from.files->bytes(from.tensor);
  const int bits = copy.zero_point_bits;
  const uint32_t middle = 1u << (bits - 1);
  const uint32_t expected = middle - static_cast<uint32_t>(copy.zero_point_offset);
  const uint32_t whole = expected * (bits == 4 ? 0x11111111u : 0x01010101u);
  const Range words = words_of(copy.rows, bits);
  for (int64_t w = words.begin; w < words.end; ++w) {
    for (int64_t c = 0; c < from.cols; ++c) {
      const uint32_t word = word_at(bytes, from, w, c);
      for (int64_t r = w * 32 / bits; word != whole && r < (w + 1) * 32 / bits; ++r) {
        const uint32_t value = (word >> shift_of(copy.unpack, bits, r)) & mask_of(bits);
        if (value != expected && copy.rows.begin <= r && r < copy.rows.end) {
          throw InvalidArgument(fmt::format(
              "{} holds the zero point {} of row {} and group {}, expected {}, since "
              "quantization_config has sym true (checkpoint_format gptq_v2 stores it as {}, gptq "
              "as {})",
              from.label, value, r, c, expected, middle, middle - 1));
        }
      }
    }
  }
  from.release(words, {0, from.cols});
}

}  // namespace

std::pair<Range, Range> PartCopy::stored_range() const {
  const bool is_in_words = unpack == Unpack::kRows || unpack == Unpack::kAwqRows;
  const bool takes_all_columns = order != nullptr || (is_in_words && to == nullptr);
  return {is_in_words ? words_of(rows, zero_point_bits) : rows,
          takes_all_columns ? Range{0, from.cols} : cols};
}

void PartCopy::run(FiniteWeights& finite) const {
  switch (unpack) {
    case Unpack::kRows:
    case Unpack::kAwqRows:
      return to == nullptr ? check_zero_points(*this) : unpack_zero_points(*this);
    case Unpack::kAwqWords:
      return unpack_awq(*this);
    case Unpack::kFlipSigns:
      return copy_flipped(*this);
    case Unpack::kNone:
      break;
  }
  const bool is_as_stored = role == PartRole::kWeight ||
                            (!order && num_rows == rows.size() && bits(dtype) == bits(from.dtype));
  if (is_as_stored) {
    finite.copy(from, dtype, rows, cols, to, stride, expert);
  } else {
    copy_scales(*this, finite);
  }
}

}  // namespace moebius::checkpoint
