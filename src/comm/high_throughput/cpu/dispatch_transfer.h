// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One dispatch under way.
//
//   construction  counts are exchanged, so every rank knows every final row; own rows are stored
//                 straight into the receive banks of this node's ranks; one message per other
//                 node is posted, or, on one node, a barrier begun
//   finish()      messages from other nodes have arrived and are passed on within this node; the
//                 barrier says that all rows of all sources stand in their banks
//   receive()     tensors on this rank's bank
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
  // Along the route of an earlier dispatch, payloads only.
  DispatchTransfer(CpuHighThroughput& state,
                   std::span<const Tensor> payloads,
                   const HighThroughputHandle& handle,
                   const Stream& stream);

  void finish();
  DispatchOutput receive();

 private:
  // Rows to be stored: field by field, one per token.
  struct Rows {
    std::vector<const std::byte*> payloads;
    const int32_t* ids = nullptr;     // [n, K] global; null along a known route
    const float* weights = nullptr;   // [n, K] or null
    const int32_t* tokens = nullptr;  // [n]; null: 0, 1, 2, ...
  };

  Rows own_rows() const;
  Rows message_rows(const std::byte* block, int64_t num_rows) const;
  void send();
  void post_messages();
  void store(const Rows& rows, const Route& route, int source);
  Tensor field(int index, DType dtype, const Shape& shape) const;

  CpuHighThroughput& state_;
  Stream stream_;
  std::vector<Tensor> payloads_;
  Tensor ids_;
  Tensor weights_;
  int64_t expert_alignment_ = 1;
  RowLayout layout_;
  std::shared_ptr<HighThroughputHandle> made_;    // null along a known route
  const HighThroughputHandle* handle_ = nullptr;  // the route in use
  BankChoice banks_;
  std::vector<std::vector<std::byte>> outgoing_;  // messages to other nodes
  std::vector<std::vector<std::byte>> incoming_;  // one per relay
  std::unique_ptr<Exchange> exchange_;            // of the messages, or the barrier
};

}  // namespace moebius
