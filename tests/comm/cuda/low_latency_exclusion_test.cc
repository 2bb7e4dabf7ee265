// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs that goes on by itself without a rank that is missing.  Sums must be those of
// the plain definition, without the rows of that rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "moebius/graph.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/comm/low_latency_calls.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

constexpr int kRanks = 4;
constexpr int kLast = kRanks - 1;  // the rank that is missed
constexpr milliseconds kTimeout(800);

// A rank that shares the GPU with the others.
struct ExcludingRank {
  ExcludingRank(Group& group,
                const DispatchProblem& problem,
                const RankInput& input,
                LowLatencySum s)
      : p(problem),
        rank(group.rank()),
        host(input),
        sum(s),
        stream(Stream::cuda(group.device().index)),
        transport(group, p.placement(), options()),
        x(up(input.x)),
        ids(up(input.ids)),
        weights(up(input.weights)),
        out(Tensor::zeros(input.x.shape(), DType::kBF16, group.device())) {}
  ~ExcludingRank() { stream.synchronize(); }

  LowLatencyOptions options() const {
    LowLatencyOptions options = options_for(p, sum);
    options.excludes_missing = true;
    options.num_sms = 12;  // the kernels of all ranks must fit on the GPU at once
    return options;
  }
  Tensor up(const Tensor& t) const { return to_device(t, stream.device(), stream); }
  Tensor down(const Tensor& t) const { return to_device(t, Device::cpu(), stream); }

  LowLatencyDispatchOutput dispatch() {
    const auto rows = transport.dispatch({.x = x, .topk_ids = ids}, stream);
    stream.synchronize();
    transport.check();
    return rows;
  }
  // What the experts of this rank make of the rows.
  Tensor results(const LowLatencyDispatchOutput& rows) const {
    LowLatencyDispatchOutput received;
    received.x = down(rows.x);
    received.expert_num_tokens = down(rows.expert_num_tokens);
    return up(run_experts(p, rank, received));
  }
  void combine(const LowLatencyDispatchOutput& rows) {
    const Tensor y = results(rows);
    transport.combine({y, ids, weights}, *rows.handle, stream, out);
    stream.synchronize();  // y must live until the kernel has read it
    transport.check();
  }
  void expect_sums(const std::set<int>& dead) const {
    EXPECT_TRUE(same_bytes(down(out), expected_combined(p, host, dead, sum)));
  }
  void expect_dead(const std::set<int>& dead) const {
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(transport.dead_ranks()[static_cast<size_t>(r)], dead.count(r) == 1) << r;
    }
  }
  // The rank that was missed is told so.
  void expect_excluded() {
    const std::string message = comm_error_of(
        [&] {
          for (int call = 0; call < 2; ++call) {
            dispatch();
          }
        },
        rank);
    expect_contains(message, "is excluded");
  }

  DispatchProblem p;
  int rank;
  RankInput host;
  LowLatencySum sum;
  Stream stream;
  LowLatency transport;
  Tensor x, ids, weights, out;
};

class LowLatencyExclusion : public GpuTest {
 protected:
  void SetUp() override { need_gpus(1); }

  // Runs body(rank) on the ranks; change(inputs) may change what they send.
  static void run(LowLatencySum sum,
                  const std::function<void(ExcludingRank&)>& body,
                  const std::function<void(std::vector<RankInput>&)>& change = nullptr) {
    const DispatchProblem p = low_latency_problems(kRanks)[0];
    std::vector<RankInput> inputs = make_inputs(p);
    if (change) {
      change(inputs);
    }
    const auto run_rank = [&](Group& group) {
      SCOPED_TRACE("rank " + std::to_string(group.rank()));
      ExcludingRank rank(group, p, inputs[static_cast<size_t>(group.rank())], sum);
      body(rank);
    };
    try {
      run_thread_ranks(thread_options({"peer", kRanks, 1}, kTimeout), run_rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
};

enum class End { kLeaves, kIsSilent };
enum class Moment { kBeforeDispatch, kBeforeCombine };

TEST_F(LowLatencyExclusion, CallsGoOnWithoutARankThatIsMissed) {
  for (const LowLatencySum sum : {LowLatencySum::kSelections, LowLatencySum::kRanks}) {
    for (const End end : {End::kLeaves, End::kIsSilent}) {
      for (const Moment moment : {Moment::kBeforeDispatch, Moment::kBeforeCombine}) {
        SCOPED_TRACE(std::string(end == End::kLeaves ? "leaves" : "is silent") +
                     (moment == Moment::kBeforeCombine ? " before combine" : " before dispatch") +
                     (sum == LowLatencySum::kRanks ? ", sums per rank" : ""));
        run(sum, [&](ExcludingRank& r) {
          for (int call = 0; call < 6; ++call) {
            const bool ends = r.rank == kLast && call == 2;
            const std::set<int> dead = call < 2 ? std::set<int>{} : std::set<int>{kLast};
            if (!ends || moment == Moment::kBeforeCombine) {
              const auto rows = r.dispatch();
              if (!ends) {
                r.combine(rows);
                r.expect_sums(dead);
                r.expect_dead(dead);
              }
            }
            if (ends) {
              if (end == End::kIsSilent) {  // until the others have missed it
                std::this_thread::sleep_for(3 * kTimeout);
                r.expect_excluded();
              }
              return;
            }
          }
        });
      }
    }
  }
}

// Rank 0 alone has rows on the last rank, and so misses it in combine.  The others go on to the
// next dispatch, where they wait for the last rank and for rank 0, which is late: it must not be
// missed.
TEST_F(LowLatencyExclusion, ARankThatOnlyWaitsIsNotExcluded) {
  const auto only_rank_0_needs_the_last = [](std::vector<RankInput>& inputs) {
    const DispatchProblem p = low_latency_problems(kRanks)[0];
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      auto* ids = inputs[rank].ids.data<int32_t>();
      for (int64_t i = 0; i < inputs[rank].ids.numel(); ++i) {
        ids[i] = ids[i] >= 0 && p.placement().rank_of(ids[i]) == kLast ? -1 : ids[i];
      }
    }
  };
  run(
      LowLatencySum::kSelections,
      [&](ExcludingRank& r) {
        for (int call = 0; call < 5; ++call) {
          const auto rows = r.dispatch();
          if (r.rank == kLast && call == 1) {
            return;
          }
          r.combine(rows);
          const bool is_missed = call > 1 || (call == 1 && r.rank == 0);
          r.expect_sums(is_missed ? std::set<int>{kLast} : std::set<int>{});
        }
        r.expect_dead({kLast});
      },
      only_rank_0_needs_the_last);
}

// Two ranks are missed, one after the other.
TEST_F(LowLatencyExclusion, CallsGoOnWithoutTwoRanks) {
  run(LowLatencySum::kSelections, [](ExcludingRank& r) {
    for (int call = 0; call < 6; ++call) {
      std::set<int> dead;
      if (call >= 1) {
        dead.insert(1);
      }
      if (call >= 3) {
        dead.insert(kLast);
      }
      if (dead.count(r.rank) == 1) {
        return;
      }
      r.combine(r.dispatch());
      r.expect_sums(dead);
      r.expect_dead(dead);
    }
  });
}

TEST_F(LowLatencyExclusion, GraphsGoOnWithoutARankThatIsMissed) {
  run(LowLatencySum::kSelections, [](ExcludingRank& r) {
    // Rows of the last rank stand behind those of the others, so that these stay where they are.
    const Tensor y = r.results(r.dispatch());
    r.dispatch();  // now both results have their memory
    const Graph graph(r.stream, [&] {
      const auto rows = r.transport.dispatch({.x = r.x, .topk_ids = r.ids}, r.stream);
      r.transport.combine({y, r.ids, r.weights}, *rows.handle, r.stream, r.out);
    });
    r.transport.group().barrier("captured");
    for (int replay = 0; replay < 5; ++replay) {
      if (r.rank == kLast && replay == 2) {
        return;
      }
      graph.launch();
      r.stream.synchronize();
      r.transport.check();
      const std::set<int> dead = replay < 2 ? std::set<int>{} : std::set<int>{kLast};
      r.expect_sums(dead);
      r.expect_dead(dead);
    }
  });
}

TEST_F(LowLatencyExclusion, IsForOneNode) {
  ThreadGroupOptions options = thread_options({"peer", 2, 1, 1});
  run_thread_ranks(options, [](Group& group) {
    LowLatencyOptions low_latency{4, 128, 2, DType::kBF16};
    low_latency.excludes_missing = true;
    EXPECT_THROW(LowLatency(group, ExpertPlacement::linear(4, 2), low_latency), Unsupported);
  });
}

}  // namespace
}  // namespace moebius::testing
