// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies that bypass the caches.  An ordinary store first reads the line that it writes to.  For
// rows that will leave the caches before they are read, that is a third of the memory traffic, for
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace moebius {

// When a rank moves at least this many bytes in one call, they are assumed not to stay in the
// caches.
inline constexpr int64_t kStreamBytes = int64_t{8} << 20;

// Works as memcpy does, but this thread must call stream_fence() before another may read the copy.
inline void stream_copy(std::byte* to, const std::byte* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64;
  constexpr int64_t kLanes = sizeof(__m128i);
  // Only whole lines bypass the caches: a part of a line would be read, and written on its own.
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
