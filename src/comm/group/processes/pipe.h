// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Pipe: a ring of bytes in memory that two processes share.  One writes, the other reads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moebius::comm {

class Pipe {
 public:
  // For the writer: the place of the next bytes, as many as lie together; empty when the ring is
  // full.
  std::span<std::byte> room() {
    // pairs with take: the reader's loads of these bytes are over.
    const uint64_t free = kBytes - (written() - taken_.load(std::memory_order_acquire));
    const uint64_t at = written() % kBytes;
    return {bytes_ + at, static_cast<size_t>(std::min(free, kBytes - at))};
  }
  void put(int64_t bytes) {
    // pairs with there: the bytes.
    written_.store(written() + static_cast<uint64_t>(bytes), std::memory_order_release);
  }

  // For the reader: the next bytes, as many as lie together; empty when there are none.
  std::span<const std::byte> there() const {
    const uint64_t taken = taken_.load(std::memory_order_relaxed);
    const uint64_t waiting = written_.load(std::memory_order_acquire) - taken;  // pairs with put
    const uint64_t at = taken % kBytes;
    return {bytes_ + at, static_cast<size_t>(std::min(waiting, kBytes - at))};
  }
  void take(int64_t bytes) {
    taken_.store(taken_.load(std::memory_order_relaxed) + static_cast<uint64_t>(bytes),
                 std::memory_order_release);  // pairs with room: the loads are over
  }

 private:
  static constexpr uint64_t kBytes = 128 << 10;

  uint64_t written() const { return written_.load(std::memory_order_relaxed); }

  // Bytes since the start; each on a cache line of its own.
  alignas(64) std::atomic<uint64_t> written_{0};  // stored by the writer
  alignas(64) std::atomic<uint64_t> taken_{0};    // stored by the reader
  alignas(64) std::byte bytes_[kBytes];
};

}  // namespace moebius::comm
