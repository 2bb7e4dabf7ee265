// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How processes become a group that can do no more than exchange a few bytes: each says a Hello,
// every rank gets those of all, and rank 0 hands its board to the others.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/group/failure.h"
#include "comm/group/processes/process_group.h"
#include "comm/group/shared_file.h"

namespace moebius::comm {

// What a process says of itself.  It is made of bytes.
struct Hello {
  int32_t rank = -1;
  int32_t size = 0;
  int32_t ranks_per_node = 0;
  pid_t pid = 0;
  int64_t board_bytes = 0;     // differs between versions of the library
  uint64_t pid_namespace = 0;  // in which `pid` is a process
  uint64_t cpus_hash = 0;
  FixedText<40> boot;  // the same in all processes of a machine
  FileMailbox::Address mailbox;
  FixedText<256> error;  // why this process cannot take part; empty: it can
};

class Arrival {
 public:
  Arrival() = default;  // of a process that takes no part
  Arrival(int rank, int size, int ranks_per_node = 0);

  const Hello& hello() const { return hello_; }
  // hellos [size], by rank.  Throws on every rank when they do not fit together: InvalidArgument
  // for wrong numbers, Unsupported for processes that cannot share memory.  Throws CommError when a
  // rank dies or does not come in time.
  std::unique_ptr<ProcessGroup> meet(std::string_view op,
                                     std::span<const Hello> hellos,
                                     const Topology& topology,
                                     std::chrono::milliseconds timeout);

 private:
  File await_board(std::string_view op, ProcessWatch& watch, std::chrono::milliseconds timeout);

  Hello hello_;
  std::optional<FileMailbox> mailbox_;
  File board_file_;  // of rank 0
};

}  // namespace moebius::comm
