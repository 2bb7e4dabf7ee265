// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High-throughput dispatch and combine on GPUs of several nodes.  The steps are those of the CPU
// (dispatch_transfer.h, combine_transfer.h), with rows on the GPUs.
//
// Hosts know all counts, and wait for their GPUs where ranks meet.  So no kernel waits for a peer,
// and nothing can be captured in a CUDA graph.  At most one call is unfinished.  The next call of
// the object finishes it first, so ranks meet in the same order, whenever their hooks are called.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/high_throughput/cuda/node_rows.h"
#include "comm/high_throughput/cuda/transport_base.h"
#include "comm/routing/notices.h"

namespace moebius::comm {

struct CudaNodesHandle final : DispatchHandle {
  int rank = 0;
  int64_t tokens = 0;
  int64_t topk = 0;
  CountMatrix counts;
  Tensor to_ranks;  // i32 [T, R]: place of each copy among this rank's, -1 = none
  Tensor to_nodes;  // i32 [T, num_nodes]
  // The tokens of other nodes that this rank passes on within its own, in order of source.
  struct Relay {
    int source = 0;
    int64_t tokens = 0;
    Tensor to_ranks;  // i32 [tokens, ranks of this node]
  };
  std::vector<Relay> relays;
  Tensor source_tokens;  // i32 [M]

  int64_t num_tokens() const override { return tokens; }
  int64_t num_rows() const override { return counts.rows(rank); }
  int64_t most_rows() const override { return counts.most_rows(); }
  Tensor source_rank() const override;
  Tensor source_token() const override { return source_tokens; }
  Tensor rank_prefix() const override;
};

class CudaNodesHighThroughput final : public CudaHighThroughputBase {
 public:
  // Collective.
  CudaNodesHighThroughput(Group& group, ExpertPlacement placement);
  ~CudaNodesHighThroughput() override;

  Pending<DispatchOutput> dispatch_async(const DispatchInput& input, const Stream& stream) override;
  Pending<DispatchOutput> dispatch_cached_async(const CachedDispatchInput& input,
                                                const DispatchHandle& handle,
                                                const Stream& stream) override;
  Pending<CombineOutput> combine_async(const State::Combine& call) override;
  TransportStatistics statistics() const override { return sent_; }
  void trim() override { arena_.trim(last_stream_); }
  int64_t bytes() const override {
    return base_bytes() + banks_.bytes() + (shown_ == nullptr ? 0 : shown_->bytes());
  }

 private:
  struct Dispatch;
  struct Combine;

  // The blocks of a grid that moves rows.
  static int blocks_of(const DispatchConfig& config) {
    constexpr int kBlocksPerSm = 4;
    return kBlocksPerSm * config.num_sms;
  }
  const Topology& topology() const { return group.topology(); }
  int rank() const { return group.rank(); }
  int node_size() const { return topology().node_size(topology().node()); }
  int first_rank() const { return topology().node_begin[static_cast<size_t>(topology().node())]; }

  // Fills in the routes of the handle, and what the notice tells of them.
  void find_routes(Dispatch& call, Notice& notice);
  void start(Dispatch& call, std::string_view op, Notice notice);
  void send_messages(Dispatch& call);
  void pass_on(Dispatch& call);
  void store(Dispatch& call, const CopyRowsArgs& rows, int source);
  CopyRowsArgs own_rows(const Dispatch& call) const;
  Tensor field(const Dispatch& call, int index, DType dtype, const Shape& shape) const;
  std::vector<Tensor> payload_fields(const Dispatch& call) const;
  void list_experts(Dispatch& call, DispatchOutput& output) const;
  DispatchOutput receive(Dispatch& call);

  void show_rows(Combine& call);
  void send_sums(Combine& call);
  void sum_own(Combine& call);
  // The sums of the copies that ranks of this node hold of the tokens of `source`.
  SumRowsArgs sum_of_node(const Combine& call, int source, const CopyIndex& copies) const;

  // A call whose ranks have yet to meet.
  struct Unfinished {
    Stream stream;
    std::string_view op;
    bool is_done = false;
  };
  std::shared_ptr<Unfinished> leave_unfinished(const Stream& stream, std::string_view op);
  void finish(const std::shared_ptr<Unfinished>& call);
  void finish_last();
  // Makes the stream wait for what an earlier call has left on another stream.
  void order_after_last(const Stream& stream);
  // Waits until what all ranks have enqueued on their streams is done.  The call is collective.
  void meet(const Stream& stream, std::string_view op);

  const Tensor node_of_rank_;  // i32 [R]
  const Stream messages_;      // carries what goes between nodes, beside what stays on this one
  BankPool banks_;
  std::unique_ptr<Window> shown_;  // rows that the ranks of the node read in a combine
  std::shared_ptr<Unfinished> unfinished_;
  std::optional<Stream> last_stream_;  // of the latest call, even if it has failed
  TransportStatistics sent_;
};

const CudaNodesHandle& own_nodes_handle(const DispatchHandle& handle);

}  // namespace moebius::comm
