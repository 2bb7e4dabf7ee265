// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks send in the dispatch benchmark, and what must come of it: computed from the inputs of
// all ranks, with none of the code that is measured.
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

// What one rank brings.
struct RankRows {
  std::vector<Tensor> payloads;  // bf16 [T, H], or f8e4m3 [T, H] and f32 [T, H / 128]
  Tensor topk_ids;               // i32 [T, K], distinct experts, all equally likely
  Tensor topk_weights;           // f32 [T, K]
};
RankRows make_rows(const DispatchProblem& problem, RowFormat format, int rank);
// Other experts and weights for the same rows.
void draw_routing(const DispatchProblem& problem, uint64_t seed, RankRows& rows);

// What the experts of `rank` add for each row it got: rows that differ from rank to rank.
Tensor rank_contribution(const Tensor& rows, int rank, const Stream& stream);
// The same in the batched format, different from expert to expert.
Tensor expert_contribution(const DispatchProblem& problem,
                           int rank,
                           const LowLatencyDispatchOutput& received);

// How a result of `rank` differs from what it must be; nullopt when it does not.
using Difference = std::optional<std::string>;

// Every row bit for bit; with routing, if the output has it.
Difference dispatch_difference(const DispatchProblem& problem,
                               const std::vector<RankRows>& all,
                               int rank,
                               const DispatchOutput& output);
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
                                          const Tensor& combined);

}  // namespace moebius::bench
