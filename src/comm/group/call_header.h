// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CallHeader: what ranks that are processes tell each other about an exchange before its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "comm/group/failure.h"
#include "moebius/group.h"

namespace moebius::comm {

struct CallHeader {
  int64_t epoch = 0;
  uint64_t op_hash = 0;
  int64_t num_blocks = 0;
  int64_t bytes = 0;
  uint64_t sizes_hash = 0;  // a hash of the blocks' sizes, in order
  OpName op;
};

// The header for the blocks that go to, or come from, one peer.
template <typename Block>
CallHeader describe_blocks(const Call& call, std::span<const Block> blocks);

// What `rank` finds wrong with the header of `peer`; nullopt when both ends mean the same call and
// the same blocks.
std::optional<Failure> find_mismatch(
    int rank, const Call& call, int peer, const CallHeader& header, const CallHeader& expected);

}  // namespace moebius::comm
