// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs: halves in flight, many calls, graphs, failures, ranks given up.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "core/cuda/runtime.h"
#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

// Send halves of two calls before either receive half; every other time the second comes first.
TEST_P(LowLatencyCuda, TwoCallsInFlightDoNotDisturbEachOther) {
  const Problem p = make_problem(9, 3, 1152);
  const Reference reference = run_on_cpu(p, {kNone}, 12);
  run_ranks(p, [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    for (size_t i = 0; i + 1 < calls.size(); i += 2) {
      const DeviceInput a = put(r, calls[i].in);
      const DeviceInput b = put(r, calls[i + 1].in);
      auto pending_a = r.gpu.dispatch_async({a.x, a.ids, kNone, a.tags}, r.stream);
      auto pending_b = r.gpu.dispatch_async({b.x, b.ids, kNone, b.tags}, r.stream);
      EXPECT_THROW(r.gpu.dispatch_async({a.x, a.ids, kNone}, r.stream), InvalidArgument);
      const bool is_swapped = i % 4 == 2;
      (is_swapped ? pending_b : pending_a).hook();
      (is_swapped ? pending_a : pending_b).hook();
      const auto got_a = pending_a.receive();
      const auto got_b = pending_b.receive();
      pending_a = {};
      pending_b = {};
      r.finish();
      expect_dispatched(got_a, calls[i]);
      expect_dispatched(got_b, calls[i + 1]);
      const Tensor y_a = r.up_batched(calls[i].y, calls[i].counts);
      const Tensor y_b = r.up_batched(calls[i + 1].y, calls[i + 1].counts);
      auto back_a = r.gpu.combine_async({y_a, a.ids, a.weights}, *got_a.handle, r.stream, a.out);
      auto back_b = r.gpu.combine_async({y_b, b.ids, b.weights}, *got_b.handle, r.stream, b.out);
      (is_swapped ? back_a : back_b).finish();
      (is_swapped ? back_b : back_a).finish();
      r.finish();
      expect_combined(a.out, calls[i]);
      expect_combined(b.out, calls[i + 1]);
    }
  });
}

// No host synchronisation for many calls, while ranks drift apart by turns.
TEST_P(LowLatencyCuda, TenThousandCallsInARow) {
  constexpr int kCalls = 10'000;
  const Problem p = make_problem(8, 4, 1024);
  const Reference reference = run_on_cpu(p, {kNone}, 1);
  run_ranks(p, [&](Rank& r) {
    const Call& expected = reference[static_cast<size_t>(r.group.rank())][0];
    const DeviceInput in = put(r, expected.in);
    const Tensor y = r.up_batched(expected.y, expected.counts);
    for (int call = 0; call < kCalls; ++call) {
      if (call % 197 == 0 && call / 197 % r.group.size() == r.group.rank()) {
        std::this_thread::sleep_for(milliseconds(3));
      }
      const auto got = r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
      r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
      if (call % 1000 == 999) {
        r.finish();
        expect_dispatched(got, expected);
        expect_combined(in.out, expected);
      }
    }
    const Tensor statistics = r.gpu.expert_statistics();
    for (int64_t l = 0; l < statistics.numel(); ++l) {
      EXPECT_EQ(statistics.data<int64_t>()[l],
                int64_t{kCalls} * expected.counts.data<int32_t>()[l]);
    }
    expect_sent(r.gpu.statistics(), expected.sent, kCalls);
    r.gpu.reset_statistics();
    expect_sent(r.gpu.statistics(), {}, 1);
  });
}

// One dispatch and one combine: the bank changes with every replay, the tensors do not.
TEST_P(LowLatencyCuda, GraphsMayBeReplayed) {
  if (!is_one_node()) {
    GTEST_SKIP() << "skipped: needs one node";
  }
  const Problem p = make_problem(8, 4, 2048);
  const Reference reference = run_on_cpu(p, {kNone}, 7);
  run_ranks(p, [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    const DeviceInput in = put(r, calls[0].in);
    // Both results have their tensors before anything is captured.
    r.gpu.dispatch({in.x, in.ids, kNone}, r.stream);
    r.gpu.dispatch({in.x, in.ids, kNone}, r.stream);
    const Tensor y = r.up_batched(calls[0].y, calls[0].counts);
    r.finish();
    auto* const stream = static_cast<cudaStream_t>(r.stream.native_handle());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const auto got = r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
    r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphUpload(exec, stream), cudaSuccess);
    r.stream.synchronize();
    r.group.barrier("captured");
    for (const Call& call : calls) {
      for (const auto& [from, to] : {std::pair{call.in.x, in.x}, std::pair{call.in.ids, in.ids},
                                     std::pair{call.in.weights, in.weights}}) {
        cuda::copy_now(to.raw(), from.raw(), from.nbytes(), r.device.index);
      }
      r.fill_batched(y, call.y, call.counts);
      ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      r.finish();
      expect_dispatched(got, call);
      expect_combined(in.out, call);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
}

// The last rank never comes.  The others are told so within the deadline, and no kernel spins on.
TEST_P(LowLatencyCuda, NamesARankThatNeverComes) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to miss on this node";
  }
  const Problem p = make_problem(8, 4, 1024);
  const milliseconds timeout(800);
  run_ranks(
      p,
      [&](Rank& r) {
        const int missing = r.group.size() - 1;
        const DeviceInput in = put(r, make_input(p, r.group.rank(), 5));
        if (r.group.rank() == missing) {
          std::this_thread::sleep_for(timeout);  // the others need as long to find out
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        try {
          r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
          r.stream.synchronize();
          r.gpu.check();
          ADD_FAILURE() << "did not miss rank " << missing;
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), missing) << error.what();
          EXPECT_NE(std::string(error.what()).find("low latency dispatch, call 1"),
                    std::string::npos)
              << error.what();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * timeout);
        EXPECT_THROW(r.gpu.dispatch({in.x, in.ids, kNone}, r.stream), CommError);
      },
      timeout);
}

TEST_P(LowLatencyCuda, NamesARankThatNeverComesFromAnotherNode) {
  if (is_one_node()) {
    GTEST_SKIP() << "needs nodes";
  }
  const Problem p = make_problem(8, 4, 1024);
  const milliseconds timeout(800);
  run_gpu_ranks(
      GetParam(),
      [&](Group& group) {
        Rank r(group, p);
        if (group.rank() == num_ranks() - 1) {
          std::this_thread::sleep_for(2 * timeout);
          return;
        }
        const DeviceInput in = put(r, make_input(p, group.rank(), 5));
        const auto start = std::chrono::steady_clock::now();
        try {
          r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
          ADD_FAILURE() << "did not miss rank " << num_ranks() - 1;
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), num_ranks() - 1) << error.what();
          EXPECT_NE(std::string(error.what()).find("low latency dispatch"), std::string::npos)
              << error.what();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * timeout);
      },
      timeout);
}

// The last rank's ids are made wrong by `spoil`.  Every rank is told `what`, that rank also
// `which`.
void expect_told_of_ids(Rank& r,
                        const std::function<void(const Tensor& ids)>& spoil,
                        const std::string& what,
                        const std::string& which) {
  const int bad = r.group.size() - 1;
  const Input host = make_input(r.p, r.group.rank(), 5);
  if (r.group.rank() == bad) {
    spoil(host.ids);
  }
  const DeviceInput in = put(r, host);
  if (r.p.ranks_per_node != 0) {  // found before anything is told, as on the CPU
    if (r.group.rank() == bad) {
      EXPECT_THROW(r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream), InvalidArgument);
    }
    return;
  }
  r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
  r.stream.synchronize();
  r.group.barrier("all know");
  try {
    r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);  // may be the first to see it
    r.stream.synchronize();
    r.gpu.check();
    ADD_FAILURE() << "passed: " << which;
  } catch (const CommError& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.peer(), bad) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_EQ(message.find(which) != std::string::npos, r.group.rank() == bad) << message;
  }
}

TEST_P(LowLatencyCuda, NamesARankWithABadId) {
  const Problem p = make_problem(8, 4, 1024);
  run_ranks(p, [&](Rank& r) {
    expect_told_of_ids(
        r, [&](const Tensor& ids) { ids.data<int32_t>()[9 * p.routing.topk + 2] = 8; }, "expert id",
        "8 of token 9");
  });
}

TEST_P(LowLatencyCuda, NamesARankWhoseTokensNameAnExpertTooOften) {
  const Problem p = make_problem(8, 4, 1024);
  run_ranks(p, [&](Rank& r) {
    expect_told_of_ids(
        r, [](const Tensor& ids) { std::fill_n(ids.data<int32_t>(), ids.numel(), 3); },
        "tokens of rank " + std::to_string(r.group.size() - 1) + " name",
        "expert 3 132 times, expected at most 64");
  });
}

// Given up from the start: nothing is sent to it, awaited from it, or summed of it.
TEST_P(LowLatencyCuda, GoesOnWithoutADeadRank) {
  if (num_ranks() == 1) {
    GTEST_SKIP() << "nobody to lose";
  }
  Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  if (!is_one_node()) {  // calls are collective
    run_ranks(p, [&](Rank& r) {
      if (r.group.rank() != dead) {
        const DeviceInput in = put(r, make_input(p, r.group.rank(), 5));
        r.gpu.set_dead(dead, true);
        EXPECT_THROW(r.gpu.dispatch({in.x, in.ids, kNone}, r.stream), CommError);
        r.gpu.set_dead(dead, false);
      }
    });
    return;
  }
  for (const LowLatencySum sum : {LowLatencySum::kSelections, LowLatencySum::kRanks}) {
    p.sum = sum;
    const Reference reference = run_on_cpu(p, {kNone}, 5, dead);
    run_ranks(p, [&](Rank& r) {
      r.group.barrier("made");
      if (r.group.rank() != dead) {
        r.gpu.set_dead(dead, true);
        for (const Call& call : reference[static_cast<size_t>(r.group.rank())]) {
          check_call(r, call);
        }
        r.group.set_dead(dead, false);  // for the barrier at the end
      }
    });
  }
}

// The last rank stops coming.  The others find out in different calls, give it up, and go on.
TEST_P(LowLatencyCuda, GoesOnAfterAFailure) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to lose on this node";
  }
  const Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  const milliseconds timeout(800);
  const Reference before = run_on_cpu(p, {kNone}, 3);
  const Reference after = run_on_cpu(p, {kNone}, 5, dead);
  std::atomic<int> survivors{0};
  run_ranks(
      p,
      [&](Rank& r) {
        const int rank = r.group.rank();
        for (const Call& call : before[static_cast<size_t>(rank)]) {
          check_call(r, call);
        }
        r.group.barrier("so far");
        if (rank == dead) {
          for (int i = 0; i < 200 && survivors < dead; ++i) {
            std::this_thread::sleep_for(milliseconds(50));
          }
          return;
        }
        {
          const DeviceInput in = put(r, make_input(p, rank, 9));
          auto pending = r.gpu.dispatch_async({in.x, in.ids, kNone, in.tags}, r.stream);
          Pending<LowLatencyDispatchOutput> next;
          if (rank == 0) {
            next = r.gpu.dispatch_async({in.x, in.ids, kNone, in.tags}, r.stream);
          }
          pending.hook();
          r.stream.synchronize();
          try {
            r.gpu.check();
            ADD_FAILURE() << "did not miss rank " << dead;
          } catch (const CommError& error) {
            EXPECT_EQ(error.peer(), dead) << error.what();
          }
          EXPECT_THROW(r.gpu.dispatch({in.x, in.ids, kNone}, r.stream), CommError);
        }
        r.gpu.set_dead(dead, true);
        r.gpu.reset_statistics();
        for (const Call& call : after[static_cast<size_t>(rank)]) {
          check_call(r, call);
        }
        r.group.set_dead(dead, false);  // for the barrier at the end
        ++survivors;
      },
      timeout);
}

// Polls for 10 s at most.
bool wait_until(const std::function<bool()>& is_so) {
  for (int n = 0; !is_so() && n < 1000; ++n) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  return is_so();
}

// The last rank is given up from the start, but runs: it misses the others, whose rows do not come,
// and stores its fault as everybody's abort word.  That ends none of their calls.
TEST_P(LowLatencyCuda, GoesOnThoughARankGivenUpTellsOfAFault) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to lose on this node";
  }
  const Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  const Reference reference = run_on_cpu(p, {kNone}, 10, dead);
  std::atomic<bool> has_told{false};
  std::atomic<int> num_done{0};
  run_ranks(
      p,
      [&](Rank& r) {
        const int rank = r.group.rank();
        r.group.barrier("made");
        if (rank == dead) {
          const DeviceInput in = put(r, make_input(p, rank, 9));
          r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
          r.stream.synchronize();
          EXPECT_THROW(r.gpu.check(), CommError);
          has_told = true;
          EXPECT_TRUE(wait_until([&] { return num_done == num_ranks() - 1; }));
          return;
        }
        r.gpu.set_dead(dead, true);
        const std::vector<Call>& calls = reference[static_cast<size_t>(rank)];
        for (size_t i = 0; i < calls.size(); ++i) {
          if (i == calls.size() / 2) {
            EXPECT_TRUE(wait_until([&] { return has_told.load(); }));
          }
          check_call(r, calls[i]);
        }
        ++num_done;
        r.group.set_dead(dead, false);  // for the barrier at the end
      },
      milliseconds(800));
}

// The last rank is given up, but runs, and tells of a fault after rank 1 has.  Rank 1's is heard.
TEST_P(LowLatencyCuda, HearsOfAFaultThoughARankGivenUpTellsOfAnother) {
  if (num_ranks() < 3 || !is_one_node()) {
    GTEST_SKIP() << "nobody to lose and to hear of on this node";
  }
  const Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  const Reference reference = run_on_cpu(p, {kNone}, 1, dead);
  const milliseconds timeout(500);
  std::atomic<int> num_told{0};
  std::atomic<int> num_done{0};
  run_ranks(
      p,
      [&](Rank& r) {
        const int rank = r.group.rank();
        const Input host = make_input(p, rank, 9);
        if (rank == 1) {
          host.ids.data<int32_t>()[0] = static_cast<int32_t>(p.routing.num_experts);
        }
        const DeviceInput in = put(r, host);
        r.group.barrier("made");
        if (rank != dead) {
          r.gpu.set_dead(dead, true);
          check_call(r, reference[static_cast<size_t>(rank)][0]);
        }
        const int turn = rank == 1 ? 0 : rank == dead ? 1 : 2;
        EXPECT_TRUE(wait_until([&] { return num_told >= turn; }));
        const auto start = std::chrono::steady_clock::now();
        try {
          r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
          r.stream.synchronize();
          r.gpu.check();
          ADD_FAILURE() << "heard of nothing";
        } catch (const CommError& error) {
          if (rank != dead) {
            EXPECT_EQ(error.peer(), 1) << error.what();
            EXPECT_NE(std::string(error.what()).find("expert id"), std::string::npos)
                << error.what();
            EXPECT_LT(std::chrono::steady_clock::now() - start, timeout);
          }
        }
        num_told += turn < 2;
        ++num_done;
        EXPECT_TRUE(wait_until([&] { return num_done == num_ranks(); }));
        r.group.set_dead(dead, false);  // for the barrier at the end
      },
      timeout);
}

// The last rank tells of a fault while it is given up, and is then taken back.  It is missed, but
// what it told then ends nobody's call.
TEST_P(LowLatencyCuda, ForgetsWhatARankToldWhileItWasGivenUp) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to lose on this node";
  }
  const Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  const Reference reference = run_on_cpu(p, {kNone}, 1, dead);
  const milliseconds timeout(500);
  std::atomic<bool> has_told{false};
  std::atomic<int> num_done{0};
  run_ranks(
      p,
      [&](Rank& r) {
        const int rank = r.group.rank();
        const DeviceInput in = put(r, make_input(p, rank, 9));
        r.group.barrier("made");
        if (rank == dead) {
          r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
          r.stream.synchronize();
          EXPECT_THROW(r.gpu.check(), CommError);
          has_told = true;
          EXPECT_TRUE(wait_until([&] { return num_done == num_ranks() - 1; }));
          return;
        }
        r.gpu.set_dead(dead, true);
        check_call(r, reference[static_cast<size_t>(rank)][0]);
        EXPECT_TRUE(wait_until([&] { return has_told.load(); }));
        r.gpu.set_dead(dead, false);
        try {
          r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
          r.stream.synchronize();
          r.gpu.check();
          ADD_FAILURE() << "did not miss rank " << dead;
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), dead) << error.what();
        }
        ++num_done;
      },
      timeout);
}

}  // namespace
}  // namespace moebius::testing
