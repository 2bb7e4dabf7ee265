// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Problems for dispatch and combine.  Every rank can compute the inputs of all ranks, so that it
// knows each row that it must receive.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "moebius/dispatch.h"
#include "moebius/tensor.h"

namespace moebius::testing {

enum class Skew { kUniform, kOneExpert, kOneRank, kAllMasked };

struct DispatchProblem {
  int num_ranks = 1;
  int64_t num_experts = 8;
  int64_t topk = 2;
  int64_t hidden = 64;
  std::vector<int64_t> tokens = {};  // per rank
  Skew skew = Skew::kUniform;
  double masked = 0.1;  // share of selections that are -1
  uint64_t seed = 1;
  bool strided = false;  // expert e lives on rank e % R instead of linearly

  ExpertPlacement placement() const {
    if (!strided) {
      return ExpertPlacement::linear(num_experts, num_ranks);
    }
    std::vector<int> rank_of;
    for (int64_t e = 0; e < num_experts; ++e) {
      rank_of.push_back(static_cast<int>(e % num_ranks));
    }
    return ExpertPlacement::from_ranks(rank_of, num_ranks);
  }
  int64_t num_tokens(int rank) const { return tokens[static_cast<size_t>(rank)]; }
};

// The input of one rank.
struct RankInput {
  Tensor x;        // bf16 [T, H]
  Tensor code;     // i32 [T, 2]: {rank, token}, so that a misrouted row names itself
  Tensor ids;      // i32 [T, K]
  Tensor weights;  // f32 [T, K]
};

RankInput make_input(const DispatchProblem& p, int rank);

std::vector<RankInput> make_inputs(const DispatchProblem& p);

// What the experts of `rank` give for the rows x bf16 [L, rows, H] that have come, counts[l] of
// each: expert e multiplies them by factor_of(e).
Tensor expert_products(const ExpertPlacement& placement,
                       int rank,
                       const Tensor& x,
                       const Tensor& counts,
                       const std::function<float(int64_t)>& factor_of);

// Counts what a rank sends in one call, when every rank but `dead` ones gets a message of its own.
TransportStatistics expected_sent(const DispatchProblem& p,
                                  const RankInput& in,
                                  const Topology& topology,
                                  const std::set<int>& dead = {});

bool same_bytes(const Tensor& a, const Tensor& b);

// A copy of columns [begin, end) of `t`; undefined where that is undefined.
Tensor columns_of(const Tensor& t, int64_t begin, int64_t end);

// The problems that tests of transports go through for a number of ranks.
std::vector<DispatchProblem> dispatch_problems(int num_ranks);

}  // namespace moebius::testing
