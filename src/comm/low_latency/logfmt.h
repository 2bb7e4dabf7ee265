// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of 10 bits per element on a logarithmic scale, as LowLatencyCoding::kLogFmt10 defines them.
//
// A row of H elements, a multiple of 128, is {codes of each group, 160 bytes; header of each group,
// 8 bytes}.  Element i of a group has bits [10 i, 10 i + 10) of its codes, the lowest bit first;
// the highest of them is the sign. CPUs and GPUs give the same bits, since all arithmetic is that
// of f32 without contraction.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/cuda/signal_word.h"
#include "moebius/dtype.h"

namespace moebius::logfmt {

inline constexpr int64_t kGroup = 128;
inline constexpr int64_t kCodeBytes = kGroup * 10 / 8;
inline constexpr int kLevels = 510;        // steps between the smallest and the largest magnitude
inline constexpr float kMaxRange = 32.0f;  // powers of two that a group spans at most
inline constexpr uint32_t kSignBit = 1u << 9;
inline constexpr uint32_t kMagnitudeBits = kSignBit - 1;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr uint32_t kSmallestNormalBits = 0x00800000u;

struct Header {
  float log_min;  // NaN: the group has a NaN or an infinity, and all of it reads as NaN
  float step;
};

MOEBIUS_HOST_DEVICE constexpr int64_t row_bytes(int64_t hidden) {
  return hidden / kGroup * (kCodeBytes + static_cast<int64_t>(sizeof(Header)));
}
MOEBIUS_HOST_DEVICE constexpr int64_t codes_at(int64_t group) {
  return group * kCodeBytes;
}
MOEBIUS_HOST_DEVICE constexpr int64_t header_at(int64_t hidden, int64_t group) {
  return hidden / kGroup * kCodeBytes + group * static_cast<int64_t>(sizeof(Header));
}

// The logarithm to base 2 of a positive normal number, within 1e-5.
MOEBIUS_HOST_DEVICE constexpr float log2_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  auto exponent = static_cast<float>(static_cast<int>(bits >> 23) - 127);
  auto m = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f800000u);
  if (m >= 1.5f) {
    m *= 0.5f;
    exponent += 1.0f;
  }
  const float t = (m - 1.0f) / (m + 1.0f);  // log(m) = 2 artanh(t), and |t| <= 0.2
  const float s = t * t;
  const float series =
      1.0f + s * (0.333333333f + s * (0.2f + s * (0.142857143f + s * 0.111111111f)));
  return exponent + 2.88539008f * t * series;
}

// 2^y for y in [-126, 128); larger ones count as the largest below 128.
MOEBIUS_HOST_DEVICE constexpr float exp2_of(float y) {
  constexpr float kLargest = 127.99999f;
  y = y < kLargest ? y : kLargest;
  const int whole = static_cast<int>(y < 0.0f ? y - 0.5f : y + 0.5f);
  const float f = (y - static_cast<float>(whole)) * 0.693147181f;  // |f| <= 0.35
  const float power =
      1.0f +
      f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f + f * (0.00833333333f +
                                                                            f * 0.00138888889f)))));
  const int exponent = whole > 127 ? 127 : whole;
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  return power * scale * (whole > 127 ? 2.0f : 1.0f);
}

// The bits of magnitudes order as they do.  max_bits: the largest of the group; min_bits: the
// smallest that is normal, or ~0 if none is.
MOEBIUS_HOST_DEVICE constexpr Header make_header(uint32_t max_bits, uint32_t min_bits) {
  if (max_bits >= kInfinityBits) {
    return {std::bit_cast<float>(0x7fc00000u), 0.0f};
  }
  if (max_bits < kSmallestNormalBits) {
    return {0.0f, 0.0f};
  }
  const float log_max = log2_of(std::bit_cast<float>(max_bits));
  float log_min = log2_of(std::bit_cast<float>(min_bits));
  log_min = log_min < log_max - kMaxRange ? log_max - kMaxRange : log_min;
  return {log_min, (log_max - log_min) / static_cast<float>(kLevels)};
}

MOEBIUS_HOST_DEVICE constexpr uint32_t encode(float x, const Header& header) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 31 != 0 ? kSignBit : 0;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < kSmallestNormalBits || magnitude >= kInfinityBits) {
    return sign;
  }
  if (!(header.step > 0.0f)) {
    return sign | 1;
  }
  const float level = (log2_of(std::bit_cast<float>(magnitude)) - header.log_min) / header.step;
  const int nearest = level > 0.0f ? static_cast<int>(level + 0.5f) : 0;
  return sign | static_cast<uint32_t>(1 + (nearest < kLevels ? nearest : kLevels));
}

MOEBIUS_HOST_DEVICE constexpr float decode(uint32_t code, const Header& header) {
  if (header.log_min != header.log_min) {
    return header.log_min;
  }
  const uint32_t magnitude = code & kMagnitudeBits;
  const float value =
      magnitude == 0 ? 0.0f
                     : exp2_of(header.log_min + static_cast<float>(magnitude - 1) * header.step);
  return (code & kSignBit) != 0 ? -value : value;
}

// A row on a CPU.  REQUIRES: hidden is a multiple of 128.
void encode_row(DType dtype, const std::byte* row, int64_t hidden, std::byte* coded);
void decode_row(const std::byte* coded, int64_t hidden, float* row);

}  // namespace moebius::logfmt
