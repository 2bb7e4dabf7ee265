// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The inputs of the dispatch benchmark, and the results that it must have.  These are computed from
// the inputs of all ranks, by none of the code that is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moebius/dispatch.h"
#include "moebius/low_latency.h"
#include "moebius/tensor.h"

namespace moebius::bench {

struct DispatchProblem {
  std::string name;
  int num_ranks = 1;
  int64_t tokens = 0;  // per rank
  int64_t hidden = 0;
  int64_t num_experts = 0;
  int64_t topk = 0;

  ExpertPlacement placement() const { return ExpertPlacement::linear(num_experts, num_ranks); }
};

enum class RowFormat { kBF16, kFp8 };

// The input of one rank.
struct RankRows {
  std::vector<Tensor> payloads;  // bf16 [T, H], or f8e4m3 [T, H] and f32 [T, H / 128]
  Tensor topk_ids;               // i32 [T, K], distinct experts, all equally likely
  Tensor topk_weights;           // f32 [T, K]
};
RankRows make_rows(const DispatchProblem& problem, RowFormat format, int rank);
// Draws other experts and weights for the same rows.
void draw_routing(const DispatchProblem& problem, uint64_t seed, RankRows& rows);

// Computes stand-ins for the results of the experts of `rank`, which differ from rank to rank.
Tensor rank_contribution(const Tensor& rows, int rank, const Stream& stream);
// The same in the batched format, where the results differ from expert to expert.
// REQUIRES: `received` is on the CPU.
Tensor expert_contribution(const DispatchProblem& problem,
                           int rank,
                           const LowLatencyDispatchOutput& received);

// The rows that a rank received, on the CPU.
struct ReceivedRows {
  std::vector<Tensor> payloads;
  Tensor topk_ids;  // these three are undefined when the route was known before
  Tensor topk_weights;
  Tensor source_token;
};
// Copies the first num_rows rows of an output from its device.
ReceivedRows received_rows(const DispatchOutput& output, int64_t num_rows, const Stream& stream);

// How many rows go from rank to rank, as matrices [R, R]: the sender is the row, the receiver the
// column.
struct RowCounts {
  int num_ranks = 0;
  std::vector<int64_t> copies;      // a token with several experts on a rank counts once
  std::vector<int64_t> selections;  // it counts once per expert

  // The number of rows of the rank that sends, or receives, most of them.  with_own says whether
  // those that it sends to itself count.
  int64_t most_sent(const std::vector<int64_t>& rows, bool with_own) const;
  int64_t most_received(const std::vector<int64_t>& rows, bool with_own) const;
};
RowCounts count_rows(const DispatchProblem& problem, const std::vector<RankRows>& all);

// How a result differs from what it must be; nullopt when it does not.
using Difference = std::optional<std::string>;

// Compares every received row bit by bit, and its routing unless that is undefined.
Difference dispatch_difference(const DispatchProblem& problem,
                               const std::vector<RankRows>& all,
                               int rank,
                               const ReceivedRows& received);
Difference combine_difference(const DispatchProblem& problem,
                              const RankRows& own,
                              const Tensor& combined);
Difference dispatch_difference(const DispatchProblem& problem,
                               const std::vector<RankRows>& all,
                               int rank,
                               LowLatencyCast cast,
                               const LowLatencyDispatchOutput& output);
Difference low_latency_combine_difference(const DispatchProblem& problem,
                                          const RankRows& own,
                                          LowLatencySum sum,
                                          const Tensor& combined);

}  // namespace moebius::bench
