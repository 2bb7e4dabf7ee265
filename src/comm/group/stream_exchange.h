// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// StreamExchange: an exchange between ranks that share no addresses.  Each rank sends each other
// one stream of bytes: a header, then the blocks.  How streams travel is up to the group.
#pragma once

#include <string>
#include <vector>

#include "comm/group/blocks.h"
#include "comm/group/byte_stream.h"
#include "comm/group/call_header.h"
#include "comm/group/peer_exchange.h"
#include "comm/group/shown_blocks.h"

namespace moebius::comm {

class StreamExchange : public PeerExchange {
 protected:
  static constexpr int64_t kHeaderBytes = sizeof(CallHeader);

  struct Peer {
    CallHeader sent;
    CallHeader seen;
    CallHeader expected;  // its num_blocks, bytes and sizes_hash
    ByteStream out;       // `sent`, then what goes to the peer
    ByteStream in;        // `seen`, then what comes from it
    bool has_arrived = false;
  };

  StreamExchange(PeerGroup& group, const Call& call, ExchangeBlocks blocks);

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  // Checks that the peer, whose `seen` is complete, means the same call and the same blocks; else
  // fails the group.
  void check_header(int rank);
  // Moves the blocks that this rank sends to itself.
  void copy_own();
  // Ends the exchange once all bytes are here: shows them to a reader.
  bool finish() { return is_done_ = shown_.show(group_, reader_, recv_list_); }

  bool has_arrived(int rank) const final { return peer(rank).has_arrived; }
  std::string describe_rest(int rank) const final;

 private:
  BlocksByPeer<SendBlock> sends_;
  std::vector<RecvBlock> recv_list_;  // in the caller's order
  BlocksByPeer<RecvBlock> recvs_;
  ShownBlocks shown_;
  std::vector<Peer> peers_;
};

}  // namespace moebius::comm
