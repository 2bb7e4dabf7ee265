// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/board.h"

#include <new>

namespace moebius::comm {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "what processes share has no locks");

namespace {

// The board begins with the ranks that failed first; then come the parts and the pipes.
constexpr int64_t kPartsAt = 64;

int64_t pipes_at(int num_ranks) {
  return kPartsAt + (num_ranks + 1) * static_cast<int64_t>(sizeof(Board::Part));
}

}  // namespace

int64_t Board::bytes_for(int num_ranks) {
  const int64_t num_pipes = int64_t{num_ranks} * num_ranks;
  return pipes_at(num_ranks) + num_pipes * static_cast<int64_t>(sizeof(Pipe));
}

Board::Board(int num_ranks, const File& file)
    : num_ranks_(num_ranks),
      memory_(file, bytes_for(num_ranks)),
      firsts_(reinterpret_cast<Firsts*>(memory_.data())),
      parts_(reinterpret_cast<Part*>(memory_.data() + kPartsAt)),
      pipes_(reinterpret_cast<Pipe*>(memory_.data() + pipes_at(num_ranks))) {}

std::shared_ptr<Board> Board::join(int num_ranks, const File& file) {
  return std::shared_ptr<Board>(new Board(num_ranks, file));
}

std::shared_ptr<Board> Board::make(int num_ranks, const File& file) {
  const std::shared_ptr<Board> board = join(num_ranks, file);
  new (board->firsts_) Firsts;
  for (int i = 0; i <= num_ranks; ++i) {
    new (board->parts_ + i) Part;
  }
  for (int i = 0; i < num_ranks * num_ranks; ++i) {
    new (board->pipes_ + i)
        Pipe;  // its bytes stay untouched, and take no memory until they are used
  }
  return board;
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
