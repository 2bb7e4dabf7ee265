// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Board: memory that the processes of a group share.  One process makes it; the others inherit the
// mapping, or they are handed the file and map it themselves.  It is gone with the last of them.
//
// Every part has one writer, its rank.  Part `num_ranks` is the launcher's, which tells of ranks
// that died; where ranks have none it stays empty.  A SharedText may be read while it is written,
// and is then a mixture; it is only for messages.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/peer_group.h"
#include "comm/group/processes/pipe.h"
#include "comm/group/shared_file.h"

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

// Each rank has a pipe to each other.  A larger number is surely a mistake.
constexpr int kMaxProcesses = 256;

class Board {
 public:
  static int64_t bytes_for(int num_ranks);
  // Fills the file, of bytes_for(num_ranks) zeros, with a new board.
  static std::shared_ptr<Board> make(int num_ranks, const File& file);
  // Maps the board that another process has made.
  static std::shared_ptr<Board> join(int num_ranks, const File& file);

  int num_ranks() const { return num_ranks_; }
  Pipe& pipe(int from, int to) { return pipes_[static_cast<size_t>(from * num_ranks_ + to)]; }

  struct Part {
    alignas(64) std::atomic<int64_t> epoch{0};
    SharedText<48> op;
    std::atomic<int> waits_for{-1};
    SharedText<48> waits_in;
    std::atomic<bool> has_come{false};
    std::atomic<bool> has_left{false};
    std::atomic<bool> is_stopped{false};  // the parent of forked ranks says so
    SharedText<2048> error;               // the error that ended the rank's body; empty: none

    std::array<Failure, 8> told;  // further failures are dropped
    std::atomic<int> num_told{0};
  };
  Part& part(int rank) { return parts_[static_cast<size_t>(rank)]; }

  // Adds a failure to a part.  REQUIRES: the caller owns the part.
  void tell(int part, const Failure& failure);
  // Adds to `failures` those that any part has told beyond the counts num_seen [num_ranks + 1], and
  // counts them there.
  void read_told(std::vector<int>& num_seen, std::vector<Failure>& failures);

  // The rank that failed first; -1: none.  A rank that threw something else than a CommError, or
  // died, goes before those whose CommErrors may follow from that.
  int first_failed() const {
    const int cause = firsts_->cause;
    return cause >= 0 ? cause : firsts_->comm_error.load();
  }
  void note_failed(int rank, bool is_comm_error) {
    int nobody = -1;
    (is_comm_error ? firsts_->comm_error : firsts_->cause).compare_exchange_strong(nobody, rank);
  }

 private:
  Board(int num_ranks, const File& file);

  const int num_ranks_;
  const Mapping memory_;
  struct Firsts {
    std::atomic<int> cause{-1};
    std::atomic<int> comm_error{-1};
  };
  Firsts* const firsts_;
  Part* const parts_;
  Pipe* const pipes_;
};

}  // namespace moebius::comm
