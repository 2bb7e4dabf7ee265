// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One exchange between processes: through the pipe to each peer go a header and then the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/group/blocks.h"
#include "comm/group/byte_stream.h"
#include "comm/group/call_header.h"
#include "comm/group/processes/process_group.h"
#include "comm/group/shown_blocks.h"

namespace moebius::comm {

class ProcessExchange final : public Exchange {
 public:
  ProcessExchange(ProcessGroup& group,
                  const Call& call,
                  std::span<const SendBlock> sends,
                  std::span<const RecvBlock> recvs,
                  BlockReader reader);
  ~ProcessExchange() override;

  bool test() override;
  void wait() override;

  // As much as the pipe takes, or has; true once nothing is left to do.  The latter may fail the
  // group.
  bool send_to(int peer);
  bool receive_from(int peer);
  // True when nothing is left to do with any peer; shows the blocks to a reader.
  bool finish();
  int64_t epoch() const { return call_.epoch; }

 private:
  struct Peer {
    ByteStream out;
    ByteStream in;
    CallHeader sent;
    CallHeader expected;
    CallHeader seen;
    // Of header and bytes together.
    int64_t num_sent = 0;
    int64_t num_received = 0;
  };
  static constexpr int64_t kHeaderBytes = sizeof(CallHeader);

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  bool is_missing(int rank) const;
  bool has_arrived(int rank) const {
    return peers_[static_cast<size_t>(rank)].num_received >= kHeaderBytes;
  }
  void copy_own();
  void check_header(int rank);
  PeerGroup::Wait as_wait() const;

  ProcessGroup& group_;
  const Call call_;
  std::vector<RecvBlock> recv_list_;  // in the caller's order
  BlockReader reader_;
  ShownBlocks shown_;
  bool is_done_ = false;
  std::vector<Peer> peers_;
};

}  // namespace moebius::comm
