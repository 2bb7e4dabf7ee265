// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests of low latency on CPUs: what a rank sends, and what must come of it, in plain words.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "moebius/low_latency.h"
#include "problems/dispatch_problem.h"
#include "tests/comm/group_runner.h"

namespace moebius::testing {

inline constexpr int64_t kMaxTokens = 64;
inline constexpr auto kNoCast = LowLatencyCast::kNone;

// The problems of dispatch_problems(), with no more tokens per rank than fit, and with rows that
// can be cast.
std::vector<DispatchProblem> low_latency_problems(int num_ranks);

LowLatencyOptions options_for(const DispatchProblem& p,
                              LowLatencySum sum = LowLatencySum::kSelections);

// Calls visit(source, selection, local expert, row) for every row that `rank` receives; `selection`
// is an index into the ids of the source.
void for_each_row(
    const DispatchProblem& p,
    const std::vector<RankInput>& inputs,
    int rank,
    const std::function<void(int source, int64_t selection, int64_t local, int64_t row)>& visit);

void expect_dispatched(const DispatchProblem& p,
                       const std::vector<RankInput>& inputs,
                       int rank,
                       const LowLatencyDispatchOutput& output,
                       LowLatencyCast cast = kNoCast,
                       int64_t room = kMaxTokens);

// Expert e multiplies a row by (e + 1).
Tensor run_experts(const DispatchProblem& p, int rank, const LowLatencyDispatchOutput& received);

// What run_experts() must come back as; experts of dead ranks add nothing.
Tensor expected_combined(const DispatchProblem& p,
                         const RankInput& in,
                         const std::set<int>& dead = {},
                         LowLatencySum sum = LowLatencySum::kSelections);

// A rank of a test.
struct LowLatencyRank {
  LowLatencyRank(Group& g,
                 const DispatchProblem& problem,
                 const std::vector<RankInput>& all,
                 LowLatencySum sum_of = LowLatencySum::kSelections)
      : group(g),
        p(problem),
        inputs(all),
        sum(sum_of),
        transport(g, p.placement(), options_for(p, sum)) {}

  LowLatencyDispatchOutput dispatch(LowLatencyCast cast = kNoCast) {
    return transport.dispatch({in.x, in.ids, cast}, stream);
  }
  Tensor combine(const LowLatencyDispatchOutput& received, const Tensor& weights) {
    const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
    transport.combine({run_experts(p, rank, received), in.ids, weights}, *received.handle, stream,
                      out);
    return out;
  }
  // Whether a dispatch and a combine give the sums that they must.
  bool sums_rightly(const std::set<int>& dead = {}) {
    return same_bytes(combine(dispatch(), in.weights), expected_combined(p, in, dead, sum));
  }

  Group& group;
  const DispatchProblem& p;
  const std::vector<RankInput>& inputs;
  const LowLatencySum sum;
  const int rank = group.rank();
  const RankInput& in = inputs[static_cast<size_t>(rank)];
  const Stream stream = Stream::cpu(1);
  LowLatency transport;
};

// Runs calls on every shape of group.
class LowLatencyTest : public ::testing::TestWithParam<GroupShape> {
 protected:
  // Three calls use both banks, and one of them again.  Many ranks, which share few CPUs, make one.
  static int num_calls() { return GetParam().num_ranks > 8 ? 1 : 3; }

  static void run(const DispatchProblem& p,
                  const std::vector<RankInput>& inputs,
                  const std::function<void(LowLatencyRank&)>& body,
                  LowLatencySum sum = LowLatencySum::kSelections) {
    SCOPED_TRACE("problem " + std::to_string(p.seed));
    run_ranks(GetParam(), [&](Group& group) {
      SCOPED_TRACE("rank " + std::to_string(group.rank()));
      LowLatencyRank rank(group, p, inputs, sum);
      body(rank);
    });
  }
};

}  // namespace moebius::testing
