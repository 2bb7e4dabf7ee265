// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/board.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "moebius/error.h"

namespace moebius::comm {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "what processes share has no locks");

Board::Board(int num_ranks) : num_ranks_(num_ranks) {
  const auto n = static_cast<size_t>(num_ranks);
  const size_t parts_at = 64;
  const size_t pipes_at = parts_at + (n + 1) * sizeof(Part);
  bytes_ = pipes_at + n * n * sizeof(Pipe);
  // Pages that are never touched take no memory.
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Unsupported(
        fmt::format("memory of {} processes: mmap: {}", num_ranks, std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(memory);
  first_failed_ = new (memory_) std::atomic<int>(-1);
  parts_ = reinterpret_cast<Part*>(memory_ + parts_at);
  for (size_t i = 0; i <= n; ++i) {
    new (parts_ + i) Part;
  }
  pipes_ = reinterpret_cast<Pipe*>(memory_ + pipes_at);
  for (size_t i = 0; i < n * n; ++i) {
    new (pipes_ + i) Pipe;  // its bytes stay untouched
  }
}

Board::~Board() {
  munmap(memory_, bytes_);
}

void Board::tell(int part_index, const Failure& failure) {
  Part& own = part(part_index);
  const int n = own.num_told.load(std::memory_order_relaxed);
  if (n == static_cast<int>(own.told.size())) {
    return;
  }
  own.told[static_cast<size_t>(n)] = failure;
  own.num_told.store(n + 1, std::memory_order_release);  // pairs with read_told: the record
}

void Board::read_told(std::vector<int>& num_seen, std::vector<Failure>& failures) {
  for (int i = 0; i <= num_ranks_; ++i) {
    Part& theirs = part(i);
    int& seen = num_seen[static_cast<size_t>(i)];
    // pairs with tell: the records.
    for (const int n = theirs.num_told.load(std::memory_order_acquire); seen < n; ++seen) {
      failures.push_back(theirs.told[static_cast<size_t>(seen)]);
    }
  }
}

}  // namespace moebius::comm
