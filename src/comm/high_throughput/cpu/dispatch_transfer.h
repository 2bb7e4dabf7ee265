// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One dispatch under way.
//
//   construction  Ranks exchange their counts, so every rank knows the place of every row.  It
//                 stores its own rows straight into the receive banks of this node's ranks, and
//                 posts one message per other node; on one node it begins a barrier instead.
//   finish()      waits for the messages from other nodes and passes their rows on within this one.
//                 A barrier then says that all rows of all sources stand in their banks.
//   receive()     makes the tensors on this rank's bank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/high_throughput/cpu/cpu_transport.h"

namespace moebius {

class DispatchTransfer {
 public:
  DispatchTransfer(CpuHighThroughput& state, const DispatchInput& input, const Stream& stream);
  // Sends payloads along the route of an earlier dispatch.
  DispatchTransfer(CpuHighThroughput& state,
                   std::span<const Tensor> payloads,
                   const HighThroughputHandle& handle,
                   const Stream& stream);

  void finish();
  DispatchOutput receive();

 private:
  // Rows to be stored: field by field, a row per token.
  struct Rows {
    std::vector<const std::byte*> payloads;
    Ids ids;                          // [n, K] global; none along a known route
    const bool* is_in = nullptr;      // [n, R]: where rows without ids go; null along a known route
    const float* weights = nullptr;   // [n, K] or null
    const int32_t* tokens = nullptr;  // [n]; null: 0, 1, 2, ...
  };

  Rows own_rows() const;
  Rows message_rows(const std::byte* block, int64_t num_rows) const;
  Route find_route(const Rows& rows,
                   int64_t num_tokens,
                   std::span<const int> destination_of,
                   std::span<const int> rank_begin,
                   int first) const;
  void send();
  void post_messages();
  void store(const Rows& rows, const Route& route, int source);
  int words_per_id() const { return Ids::of(ids_).words_per_id; }
  void receive_ids(DispatchOutput& output);
  Tensor field(int index, DType dtype, const Shape& shape) const;

  CpuHighThroughput& state_;
  Stream stream_;
  std::vector<Tensor> payloads_;
  Tensor ids_;
  Tensor weights_;
  DispatchLayout routing_;              // the caller's, if given
  std::vector<int64_t> expert_counts_;  // if they have come with the notices
  int64_t expert_alignment_ = 1;
  RowLayout layout_;
  std::shared_ptr<HighThroughputHandle> made_;    // null along a known route
  const HighThroughputHandle* handle_ = nullptr;  // has the route in use
  BankChoice banks_;
  std::vector<std::vector<std::byte>> outgoing_;  // messages to other nodes
  std::vector<std::vector<std::byte>> incoming_;  // one per relay
  std::unique_ptr<Exchange> exchange_;            // of the messages, or the barrier
};

}  // namespace moebius
