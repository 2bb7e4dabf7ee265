// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Board: memory that the processes of a group share.  It is mapped before they are forked, and it
// is gone with the last of them.
//
// Every part has one writer, its rank.  Part `num_ranks` is the launcher's, which tells of ranks
// that died.  A SharedText may be read while it is written, and is then a mixture; it is only for
// messages.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/peer_group.h"
#include "comm/group/processes/pipe.h"

namespace moebius::comm {

// A text of up to kSize - 1 characters; longer ones are cut.
template <size_t kSize>
class SharedText {
 public:
  void set(std::string_view text) {
    const size_t length = std::min(text.size(), kSize - 1);
    for (size_t i = 0; i < length; ++i) {
      chars_[i].store(text[i], std::memory_order_relaxed);
    }
    chars_[length].store('\0', std::memory_order_relaxed);
  }
  std::string get() const {
    std::string text;
    for (const auto& c : chars_) {
      const char value = c.load(std::memory_order_relaxed);
      if (value == '\0') {
        break;
      }
      text += value;
    }
    return text;
  }

 private:
  std::array<std::atomic<char>, kSize> chars_{};
};

class Board {
 public:
  explicit Board(int num_ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int num_ranks() const { return num_ranks_; }
  Pipe& pipe(int from, int to) { return pipes_[static_cast<size_t>(from * num_ranks_ + to)]; }

  struct Part {
    alignas(64) std::atomic<int64_t> epoch{0};
    SharedText<48> op;
    std::atomic<int> waits_for{-1};
    SharedText<48> waits_in;
    std::atomic<bool> has_left{false};
    SharedText<2048> error;  // the error that ended the rank's body; empty: none

    std::array<Failure, 8> told;  // further failures are dropped
    std::atomic<int> num_told{0};
  };
  Part& part(int rank) { return parts_[static_cast<size_t>(rank)]; }

  // Adds a failure to a part.  REQUIRES: the caller owns the part.
  void tell(int part, const Failure& failure);
  // Adds to `failures` those that any part has told beyond the counts num_seen [num_ranks + 1], and
  // counts them there.
  void read_told(std::vector<int>& num_seen, std::vector<Failure>& failures);

  // The rank that failed first; -1: none.
  std::atomic<int>& first_failed() { return *first_failed_; }
  void note_failed(int rank) {
    int nobody = -1;
    first_failed_->compare_exchange_strong(nobody, rank);
  }

 private:
  const int num_ranks_;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::atomic<int>* first_failed_ = nullptr;
  Part* parts_ = nullptr;
  Pipe* pipes_ = nullptr;
};

}  // namespace moebius::comm
