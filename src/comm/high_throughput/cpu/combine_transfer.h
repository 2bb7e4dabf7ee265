// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One combine under way.  Rows go the way of a dispatch backwards.
//
//   construction  Every rank shows its rows to the others of its node.  With several nodes it waits
//                 for theirs; as a gateway it sums its node's copies of each token that it relayed,
//                 and posts the sums to the token's rank.
//   finish()      waits until the rows of this node can be seen and sums from other nodes are here.
//   receive()     sums own tokens: the copies of this node in order of rank, then the nodes.
//
// Why sums of nodes are rounded before they are added: half as many bytes cross between nodes, and
// a token's result does not depend on which node it came from.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/high_throughput/cpu/cpu_transport.h"
#include "core/row_sums.h"

namespace moebius {

class CombineTransfer {
 public:
  CombineTransfer(CpuHighThroughput& state,
                  const CombineInput& input,
                  const HighThroughputHandle& handle,
                  const Stream& stream,
                  const Tensor& out_x);

  void finish();
  CombineOutput receive();

 private:
  // Another rank's rows, as this one reads them.
  struct Source {
    const std::byte* x = nullptr;
    const float* weights = nullptr;
  };
  // What rank threads hand each other.  It owns the tensors, since a rank that unwinds must not
  // free what others still read.
  struct Shown {
    Tensor x;
    Tensor weights;  // optional
    int64_t topk() const { return weights ? weights.dim(1) : 0; }
    bool has_rows_like(const Shown& other) const;
    std::string describe() const;
  };

  void count_traffic();
  void show_rows();
  void look_at(std::span<const std::byte* const> blocks);
  void await_rows();
  void post_messages();
  // The copies of one token that this node's ranks hold.
  struct Copies {
    std::vector<SumTerm> rows;          // in order of rank, weight 1
    std::vector<const float*> weights;  // as many, if there are any
  };
  // Replaces what `copies` held.
  void find_copies(const Route& route, int source, int64_t token, Copies& copies) const;
  void sum_copies(const Copies& copies, std::byte* out, bool past_caches) const;
  void sum_weights(const Copies& copies, float* out) const;

  CpuHighThroughput& state_;
  const HighThroughputHandle& handle_;
  Stream stream_;
  CombineInput input_;
  Tensor out_;
  int64_t hidden_ = 0;
  int64_t topk_ = 0;  // of the weights
  RowLayout layout_;
  BankChoice banks_;
  Shown mine_;
  std::vector<Source> sources_;                   // by rank; only those of this node
  std::vector<Shown> shown_;                      // keeps them alive when ranks are threads
  std::string mismatch_;                          // says which rank brings other rows than rank 0
  std::vector<std::vector<std::byte>> outgoing_;  // per relay
  std::vector<std::vector<std::byte>> incoming_;  // per node
  std::unique_ptr<Exchange> exchange_;            // of what is shown, then of sums between nodes
};

}  // namespace moebius
