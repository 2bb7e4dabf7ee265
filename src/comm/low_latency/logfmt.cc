// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/logfmt.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace moebius::logfmt {

namespace {

constexpr int64_t kAtOnce = 4;  // their codes are 5 bytes
constexpr size_t kBytesAtOnce = 5;

template <typename T>
void encode_as(const T* row, int64_t hidden, std::byte* coded) {
  for (int64_t g = 0; g < hidden / kGroup; ++g) {
    std::array<float, kGroup> x;
    uint32_t max_bits = 0;
    uint32_t min_bits = ~0u;
    for (int64_t i = 0; i < kGroup; ++i) {
      x[static_cast<size_t>(i)] = static_cast<float>(row[g * kGroup + i]);
      const uint32_t bits = std::bit_cast<uint32_t>(x[static_cast<size_t>(i)]) & 0x7fffffffu;
      max_bits = std::max(max_bits, bits);
      min_bits = bits >= kSmallestNormalBits ? std::min(min_bits, bits) : min_bits;
    }
    const Header header = make_header(max_bits, min_bits);
    std::memcpy(coded + header_at(hidden, g), &header, sizeof(header));
    std::byte* to = coded + codes_at(g);
    for (int64_t i = 0; i < kGroup; i += kAtOnce, to += kBytesAtOnce) {
      uint64_t packed = 0;
      for (int64_t j = 0; j < kAtOnce; ++j) {
        packed |= uint64_t{encode(x[static_cast<size_t>(i + j)], header)} << 10 * j;
      }
      std::memcpy(to, &packed, kBytesAtOnce);
    }
  }
}

}  // namespace

void encode_row(DType dtype, const std::byte* row, int64_t hidden, std::byte* coded) {
  switch (dtype) {
    case DType::kF32:
      return encode_as(reinterpret_cast<const float*>(row), hidden, coded);
    case DType::kF16:
      return encode_as(reinterpret_cast<const Float16*>(row), hidden, coded);
    default:
      return encode_as(reinterpret_cast<const BFloat16*>(row), hidden, coded);
  }
}

void decode_row(const std::byte* coded, int64_t hidden, float* row) {
  for (int64_t g = 0; g < hidden / kGroup; ++g) {
    Header header;
    std::memcpy(&header, coded + header_at(hidden, g), sizeof(header));
    const std::byte* from = coded + codes_at(g);
    for (int64_t i = 0; i < kGroup; i += kAtOnce, from += kBytesAtOnce) {
      uint64_t packed = 0;
      std::memcpy(&packed, from, kBytesAtOnce);
      for (int64_t j = 0; j < kAtOnce; ++j) {
        row[g * kGroup + i + j] = decode(static_cast<uint32_t>(packed >> 10 * j & 0x3ff), header);
      }
    }
  }
}

}  // namespace moebius::logfmt
