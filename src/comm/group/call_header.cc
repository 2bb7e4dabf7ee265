// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/call_header.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace moebius::comm {

namespace {

// FNV-1a with 64 bits.  It only has to tell names, and lists of sizes, apart.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace

template <typename Block>
CallHeader describe_blocks(const Call& call, std::span<const Block> blocks) {
  CallHeader header;
  header.epoch = call.epoch;
  Hash op_hash;
  op_hash.add(call.op.data(), call.op.size());
  header.op_hash = op_hash.value();
  header.op = call.op;
  header.num_blocks = static_cast<int64_t>(blocks.size());
  Hash sizes_hash;
  for (const Block& block : blocks) {
    header.bytes += block.bytes;
    sizes_hash.add(&block.bytes, sizeof(block.bytes));
  }
  header.sizes_hash = sizes_hash.value();
  return header;
}

template CallHeader describe_blocks(const Call& call, std::span<const SendBlock> blocks);
template CallHeader describe_blocks(const Call& call, std::span<const RecvBlock> blocks);

std::optional<Failure> find_mismatch(
    int rank, const Call& call, int peer, const CallHeader& header, const CallHeader& expected) {
  if (header.op_hash != expected.op_hash) {
    return make_mismatch(rank, call, peer, header.op.view());
  }
  using Reason = Failure::Reason;
  if (header.epoch != call.epoch) {
    return make_failure(rank, call, peer,
                        Reason::format("rank {} is at epoch {} ({}), expected {}", peer,
                                       header.epoch, header.op.view(), call.epoch));
  }
  if (header.num_blocks != expected.num_blocks || header.bytes != expected.bytes) {
    return make_failure(
        rank, call, peer,
        Reason::format("rank {} sends {} bytes in {} blocks to rank {}, which expects {} in {}",
                       peer, header.bytes, header.num_blocks, rank, expected.bytes,
                       expected.num_blocks));
  }
  if (header.sizes_hash != expected.sizes_hash) {
    return make_failure(rank, call, peer,
                        Reason::format("rank {} sends {} bytes in {} blocks to rank {}, which "
                                       "expects as many in blocks of other sizes",
                                       peer, header.bytes, header.num_blocks, rank));
  }
  return std::nullopt;
}

}  // namespace moebius::comm
