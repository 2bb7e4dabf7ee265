// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One exchange between forked processes: a stream goes through the pipe to each peer.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/group/processes/board.h"
#include "comm/group/stream_exchange.h"

namespace moebius::comm {

class ProcessExchange final : public StreamExchange {
 public:
  ProcessExchange(PeerGroup& group, Board& board, const Call& call, ExchangeBlocks blocks);
  ~ProcessExchange() override;

  // Move as much as the pipe takes, or holds; true once nothing is left to do.  receive_from() may
  // fail the group.
  bool send_to(int peer);
  bool receive_from(int peer);
  bool advance() override;

 private:
  // Bytes of a stream that have been moved.
  struct Moved {
    int64_t out = 0;
    int64_t in = 0;
  };
  bool is_open(int rank) const;
  bool is_missing(int rank) const override;

  Board& board_;
  std::vector<Moved> moved_;  // [num_ranks]
};

}  // namespace moebius::comm
