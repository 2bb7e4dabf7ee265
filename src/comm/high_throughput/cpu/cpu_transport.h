// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// HighThroughput on CPUs: what its dispatch and combine share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/device_arena.h"
#include "comm/high_throughput/bank.h"
#include "comm/high_throughput/transport.h"
#include "comm/routing/notices.h"
#include "comm/routing/route.h"
#include "comm/routing/row_layout.h"

namespace moebius {

// Tokens of another node that this rank passes on within its own.
struct Relay {
  int source = 0;
  Route route;  // to the ranks of this node
};

struct HighThroughputHandle final : DispatchHandle {
  int rank = 0;
  int64_t topk = 0;
  bool has_weights = false;
  CountMatrix counts;
  Route to_ranks;             // own tokens to the ranks of this node
  Route to_nodes;             // own tokens to all nodes
  std::vector<Relay> relays;  // in order of source
  Tensor tokens;              // i32 [M]

  int64_t num_tokens() const override { return to_nodes.num_tokens; }
  int64_t num_rows() const override { return counts.rows(rank); }
  int64_t most_rows() const override { return counts.most_rows(); }
  Tensor source_rank() const override;
  Tensor source_token() const override { return tokens; }
  Tensor rank_prefix() const override;
};

struct CpuHighThroughput final : HighThroughput::State {
  CpuHighThroughput(Group& g, ExpertPlacement p);

  DispatchLayout layout(const Tensor& topk_ids,
                        const Stream& stream,
                        const DispatchLayout& into) override;
  Pending<DispatchOutput> dispatch_async(const DispatchInput& input, const Stream& stream) override;
  Pending<DispatchOutput> dispatch_cached_async(const CachedDispatchInput& input,
                                                const DispatchHandle& handle,
                                                const Stream& stream) override;
  ExpertOrder expert_order(const DispatchOutput& output,
                           int64_t expert_alignment,
                           const Stream& stream) const override;
  Pending<CombineOutput> combine_async(const Combine& call) override;
  TransportStatistics statistics() const override { return sent; }
  void trim() override { arena.trim({}); }
  int64_t bytes() const override { return receive_banks.bytes() + combine_banks.bytes(); }

  std::vector<int> rank_of;   // by expert
  std::vector<int> node_of;   // by expert
  std::vector<int> rank_ids;  // 0 to R
  BankPool receive_banks;
  BankPool combine_banks;
  comm::DeviceArena arena{Device::cpu()};  // results that lie in no bank
  TransportStatistics sent;

  const Topology& topology() const { return group.topology(); }
  int rank() const { return group.rank(); }
  int first_rank() const { return topology().node_begin[static_cast<size_t>(topology().node())]; }
  // The ranks of this node, and the one after them.
  std::span<const int> node_ranks() const {
    return std::span(rank_ids).subspan(static_cast<size_t>(first_rank()),
                                       static_cast<size_t>(node_size()) + 1);
  }
  int node_size() const { return topology().node_size(topology().node()); }
};

}  // namespace moebius
