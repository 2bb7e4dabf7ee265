// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies past the caches.  An ordinary store first reads the line it writes to; for rows that will
// leave the caches before anybody reads them, that is a third of all memory traffic for nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace moebius {

// From this many bytes on, moved by one rank in one call, they are taken not to stay in the caches.
inline constexpr int64_t kStreamBytes = int64_t{8} << 20;

// As memcpy.  Before another thread may read the copy, stream_fence() on this one.
inline void stream_copy(std::byte* to, const std::byte* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64;
  constexpr int64_t kLanes = sizeof(__m128i);
  // Only whole lines: part of one would be read, and written by itself.
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  const int64_t head = std::min(bytes, (kLine - misaligned) % kLine);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* line = reinterpret_cast<__m128i*>(to + at);
    const __m128i lanes[kLine / kLanes] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                                           _mm_loadu_si128(source + 2),
                                           _mm_loadu_si128(source + 3)};
    for (int64_t i = 0; i < kLine / kLanes; ++i) {
      _mm_stream_si128(line + i, lanes[i]);
    }
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

inline void stream_fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace moebius
