// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A signal between GPUs is a 64-bit word {epoch | value}.  Only one side writes it, with a greater
// epoch every time, and the word is never reset.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MOEBIUS_HOST_DEVICE __host__ __device__
#else
#define MOEBIUS_HOST_DEVICE
#endif

namespace moebius {

MOEBIUS_HOST_DEVICE constexpr uint64_t make_signal(uint32_t epoch, uint32_t value) {
  return static_cast<uint64_t>(epoch) << 32 | value;
}
MOEBIUS_HOST_DEVICE constexpr uint32_t signal_epoch(uint64_t signal) {
  return static_cast<uint32_t>(signal >> 32);
}
MOEBIUS_HOST_DEVICE constexpr uint32_t signal_value(uint64_t signal) {
  return static_cast<uint32_t>(signal);
}
// Whether `seen` is `epoch` or a later epoch; both may have wrapped.
MOEBIUS_HOST_DEVICE constexpr bool has_reached(uint32_t seen, uint32_t epoch) {
  return static_cast<int32_t>(seen - epoch) >= 0;
}

// The same for a word whose writer is always far less than kMostAhead epochs ahead of its reader.
// An old word, which not every call stores or which is left in a new window, passes for one of a
// later call only when it is 2^32 - 2^20 epochs old; with has_reached it would pass from 2^31
// epochs on.
inline constexpr uint32_t kMostAhead = 1u << 20;
MOEBIUS_HOST_DEVICE constexpr bool has_just_reached(uint32_t seen, uint32_t epoch) {
  return seen - epoch <= kMostAhead;
}

}  // namespace moebius
