// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The blocks of an exchange: as lists, and grouped by peer.
#pragma once

#include <cassert>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// Throws InvalidArgument, with the value, for a peer or size out of range.  With need_data also for
// a block of some bytes without an address.
inline void expect_blocks_valid(const auto& blocks, int num_ranks, bool need_data) {
  for (const auto& block : blocks) {
    expect_ge(block.peer, 0, "peer of a block");
    expect_le(block.peer, num_ranks - 1, "peer of a block");
    expect_ge(block.bytes, 0, "bytes of a block");
    expect(!need_data || block.bytes == 0 || block.data != nullptr,
           "a block of some bytes has no data");
  }
}

// The lists that an exchange takes.
struct BlockLists {
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;

  void add(const SendBlock& send, const RecvBlock& recv) {
    sends.push_back(send);
    recvs.push_back(recv);
  }
};

// Blocks grouped by peer, in the order given.
template <typename Block>
class BlocksByPeer {
 public:
  // Replaces the blocks and reuses their memory.  REQUIRES: 0 <= peer < num_ranks in every block.
  void assign(std::span<const Block> blocks, int num_ranks) {
    first_.assign(static_cast<size_t>(num_ranks) + 1, 0);
    for (const Block& block : blocks) {
      ++first_[static_cast<size_t>(block.peer) + 1];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    next_.assign(first_.begin(), first_.end());
    blocks_.resize(blocks.size());
    index_.resize(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      const size_t at = next_[static_cast<size_t>(blocks[i].peer)]++;
      blocks_[at] = blocks[i];
      index_[at] = i;
    }
  }

  size_t size() const { return blocks_.size(); }
  std::span<const Block> of(int peer) const {
    const auto p = static_cast<size_t>(peer);
    return std::span(blocks_).subspan(first_[p], first_[p + 1] - first_[p]);
  }
  // The places of the blocks of(peer) in the caller's list.
  std::span<const size_t> index_of(int peer) const {
    const auto p = static_cast<size_t>(peer);
    return std::span(index_).subspan(first_[p], first_[p + 1] - first_[p]);
  }
  int64_t bytes_of(int peer) const {
    int64_t bytes = 0;
    for (const Block& block : of(peer)) {
      bytes += block.bytes;
    }
    return bytes;
  }

 private:
  std::vector<Block> blocks_;
  std::vector<size_t> index_;
  std::vector<size_t> first_;  // [num_ranks + 1]
  std::vector<size_t> next_;
};

}  // namespace moebius::comm
