// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_ahead.h"

#include <limits>
#include <utility>

namespace moebius::checkpoint {

ReadAhead::ReadAhead(std::vector<int64_t> bytes,
                     std::function<void(int64_t)> announce,
                     int64_t window)
    : first_byte_(std::move(bytes)), announce_(std::move(announce)), window_(window) {
  int64_t at = 0;
  for (int64_t& part : first_byte_) {
    at += std::exchange(part, at);
  }
}

void ReadAhead::begin(int64_t part) {
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
    announce_up_to(part, first_byte_[static_cast<size_t>(part)] + window_);
  }
}

void ReadAhead::finish() {
  const std::lock_guard lock(mutex_);
  announce_up_to(std::numeric_limits<int64_t>::max(), 0);
}

// Announces the parts up to `part`, and those that begin before `byte`.
void ReadAhead::announce_up_to(int64_t part, int64_t byte) {
  const auto num_parts = static_cast<int64_t>(first_byte_.size());
  while (next_ < num_parts && (next_ <= part || first_byte_[static_cast<size_t>(next_)] < byte)) {
    announce_(next_++);
  }
}

}  // namespace moebius::checkpoint
