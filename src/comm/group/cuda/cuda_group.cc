// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/cuda/cuda_group.h"

#include <fmt/format.h>

#include <cassert>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/captured_exchanges.h"
#include "comm/group/peer_group.h"
#include "core/cuda/runtime.h"

namespace moebius::comm {

namespace {

// What a rank tells a peer about the blocks between them.
struct BlockSizes {
  int64_t bytes = 0;
  uint64_t hash = 0;  // of the sizes, in order

  void add(int64_t block_bytes) {
    if (block_bytes > 0) {
      bytes += block_bytes;
      hash = (hash ^ static_cast<uint64_t>(block_bytes)) * 0x9e3779b97f4a7c15u;
    }
  }
};

// A call of the host group in which every rank tells what it will send.  Why: GPUs would wait for
// ever for a rank that does not come, or for bytes that are not sent.
void check_blocks(Group& host,
                  std::string_view op,
                  std::span<const SendBlock> sends,
                  std::span<const RecvBlock> recvs) {
  const auto num_ranks = static_cast<size_t>(host.size());
  std::vector<BlockSizes> sent(num_ranks), received(num_ranks), told(num_ranks);
  for (const SendBlock& block : sends) {
    sent[static_cast<size_t>(block.peer)].add(block.bytes);
  }
  for (const RecvBlock& block : recvs) {
    received[static_cast<size_t>(block.peer)].add(block.bytes);
  }
  BlockLists blocks;
  for (int peer = 0; peer < host.size(); ++peer) {
    const auto p = static_cast<size_t>(peer);
    blocks.add({peer, &sent[p], sizeof(BlockSizes)}, {peer, &told[p], sizeof(BlockSizes)});
  }
  host.exchange(op, blocks.sends, blocks.recvs);
  for (int peer = 0; peer < host.size(); ++peer) {
    const BlockSizes& theirs = told[static_cast<size_t>(peer)];
    const BlockSizes& ours = received[static_cast<size_t>(peer)];
    if (theirs.bytes != ours.bytes || theirs.hash != ours.hash) {
      const std::string reason = fmt::format(
          "rank {} sends {} bytes to rank {}, which expects {}{}", peer, theirs.bytes, host.rank(),
          ours.bytes, theirs.bytes == ours.bytes ? " in other blocks" : "");
      host.abort(reason);
      throw CommError(
          fmt::format("rank {}: {}, epoch {}: {}", host.rank(), op, host.epoch(), reason),
          host.rank(), peer);
    }
  }
}

}  // namespace

void copy_blocks(std::span<const SendBlock> from,
                 int from_index,
                 std::span<const RecvBlock> to,
                 const Stream& stream) {
  assert(from.size() == to.size());
  const int index = stream.device().index;
  for (size_t i = 0; i < from.size(); ++i) {
    cuda::copy_between(to[i].data, index, from[i].data, from_index, from[i].bytes,
                       stream.native_handle(), index);
  }
}

CudaGroup::CudaGroup(std::unique_ptr<Group> host,
                     Device device,
                     std::unique_ptr<DeviceProvider> provider)
    : Group(host->topology(), host->timeout()),
      host_(std::move(host)),
      device_(device),
      provider_(std::move(provider)) {}

std::unique_ptr<Window> CudaGroup::make_window(std::string_view op, int64_t bytes) {
  agree_on_window(*host_, op, bytes);
  return provider_->map_window(*host_, op, bytes);
}

void CudaGroup::exchange_on(const Stream& stream,
                            std::string_view op,
                            std::span<const SendBlock> sends,
                            std::span<const RecvBlock> recvs) {
  expect_eq(to_string(stream.device()), to_string(device_),
            fmt::format("{}: device of the stream", op));
  expect_blocks_valid(sends, size(), true);
  expect_blocks_valid(recvs, size(), true);
  check_blocks(*host_, op, sends, recvs);
  DeviceBlocks blocks;
  const auto is_empty = [](const auto& block) { return block.bytes == 0; };
  std::vector<SendBlock> full_sends(sends.begin(), sends.end());
  std::vector<RecvBlock> full_recvs(recvs.begin(), recvs.end());
  std::erase_if(full_sends, is_empty);
  std::erase_if(full_recvs, is_empty);
  blocks.sends.assign(full_sends, size());
  blocks.recvs.assign(full_recvs, size());
  for (const SendBlock& block : full_sends) {
    count_traffic(block.peer, block.bytes);
  }
  provider_->exchange_on(stream, *host_, op, blocks);
}

Support can_capture_exchanges(const Group& group) {
  const auto* gpus = dynamic_cast<const CudaGroup*>(&group);
  return gpus != nullptr ? gpus->can_be_captured()
                         : Support::no("the ranks of the group have no GPUs");
}

std::unique_ptr<Exchange> CudaGroup::start_exchange(std::string_view op,
                                                    std::span<const SendBlock> sends,
                                                    std::span<const RecvBlock> recvs,
                                                    BlockReader reader) {
  return host_->start_exchange(op, sends, recvs, std::move(reader));
}

void CudaGroup::wait_until(std::string_view op,
                           int peer,
                           const std::function<bool()>& ready,
                           const std::function<std::string()>& describe) {
  host_->wait_until(op, peer, ready, describe);
}

}  // namespace moebius::comm

namespace moebius {

std::unique_ptr<Group> make_cuda_group(std::unique_ptr<Group>&& host, Device device) {
  expect(device.is_cuda(), "the device of a rank of a peer group is cpu, expected a GPU");
  expect_usable(device);
  cuda::make_current(device.index);
  auto provider = host->shares_address_space() ? comm::make_peer_access(*host, device)
                                               : comm::make_ipc_access(*host, device);
  return std::make_unique<comm::CudaGroup>(std::move(host), device, std::move(provider));
}

}  // namespace moebius
