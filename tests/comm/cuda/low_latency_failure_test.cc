// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs: ranks that are missing or wrong are named, and the others go on without
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

// In these tests the last rank is to blame.
class LowLatencyCudaFailures : public LowLatencyCuda {
 protected:
  int last() const { return num_ranks() - 1; }
  Problem problem() const { return make_problem(8, 4, 1024); }
  Problem uneven_problem() const { return make_problem(3 * num_ranks() + 1, 4, 1024); }
};

// Polls for 10 s at most.
bool wait_until(const std::function<bool()>& is_so) {
  for (int n = 0; !is_so() && n < 1000; ++n) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  return is_so();
}

// Returns when the kernels of a dispatch have ended; throws what they have found.
void dispatch_and_check(Rank& r, const DeviceInput& in) {
  r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
  r.finish();
}

// The same as comm_error_of(), which may not take longer than `patience`.
std::string soon_error_of(const std::function<void()>& call, int peer, milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = comm_error_of(call, peer);
  EXPECT_LT(std::chrono::steady_clock::now() - start, patience);
  return message;
}

// The others are told so within the deadline, and their kernels end.
TEST_P(LowLatencyCudaFailures, NamesARankThatNeverComes) {
  if (num_ranks() == 1) {
    GTEST_SKIP() << "nobody to miss";
  }
  const milliseconds timeout(800);
  run_gpu_ranks(
      GetParam(),
      [&](Group& group) {
        Rank r(group, problem());
        if (group.rank() == last()) {  // the others need so long to find out
          std::this_thread::sleep_for(is_one_node() ? timeout : 2 * timeout);
        } else {
          const DeviceInput in = put(r, make_input(r.p, group.rank(), 5));
          const std::string message =
              soon_error_of([&] { dispatch_and_check(r, in); }, last(), 2 * timeout);
          expect_contains(message,
                          is_one_node() ? "low latency dispatch, call 1" : "low latency dispatch");
          if (is_one_node()) {
            EXPECT_THROW(r.gpu.dispatch({in.x, in.ids, kNone}, r.stream), CommError);
          }
        }
        if (is_one_node()) {
          r.stream.synchronize();
          group.barrier("end");
        }
      },
      timeout);
}

// `spoil` makes the ids of the last rank wrong.  Every rank must be told `what`, and that rank
// `which`, too.
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
  if (r.p.ranks_per_node != 0) {  // it is found before others are told, as on the CPU
    if (r.group.rank() == bad) {
      EXPECT_THROW(r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream), InvalidArgument);
    }
    return;
  }
  r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream);
  r.stream.synchronize();
  r.group.barrier("all know");
  // This rank may be the first to see it.
  const std::string message = comm_error_of([&] { dispatch_and_check(r, in); }, bad);
  expect_contains(message, what);
  EXPECT_EQ(message.find(which) != std::string::npos, r.group.rank() == bad) << message;
}

TEST_P(LowLatencyCudaFailures, NamesARankWithABadId) {
  const Problem p = problem();
  run_ranks(p, [&](Rank& r) {
    expect_told_of_ids(
        r, [&](const Tensor& ids) { ids.data<int32_t>()[9 * p.routing.topk + 2] = 8; }, "expert id",
        "8 of token 9");
  });
}

TEST_P(LowLatencyCudaFailures, NamesARankWhoseTokensNameAnExpertTooOften) {
  const Problem p = problem();
  run_ranks(p, [&](Rank& r) {
    expect_told_of_ids(
        r, [](const Tensor& ids) { std::fill_n(ids.data<int32_t>(), ids.numel(), 3); },
        "tokens of rank " + std::to_string(r.group.size() - 1) + " name",
        "expert 3 132 times, expected at most 64");
  });
}

// The rank is excluded from the start: nothing is sent to it or awaited from it, and it adds
// nothing.
TEST_P(LowLatencyCudaFailures, GoesOnWithoutADeadRank) {
  if (num_ranks() == 1) {
    GTEST_SKIP() << "nobody to lose";
  }
  Problem p = uneven_problem();
  const int dead = last();
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

// The last rank makes no more calls.  The others find out in different calls, exclude it, and go
// on.
TEST_P(LowLatencyCudaFailures, GoesOnAfterAFailure) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to lose on this node";
  }
  const Problem p = uneven_problem();
  const int dead = last();
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
          comm_error_of([&] { r.finish(); }, dead);
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

// The last rank is excluded, but runs.  It misses the others, whose rows do not come, and stores
// its fault as an abort word of every rank.
class LowLatencyCudaGivenUp : public LowLatencyCudaFailures {
 protected:
  void SetUp() override {
    LowLatencyCudaFailures::SetUp();
    if (!IsSkipped() && (num_ranks() == 1 || !is_one_node())) {
      GTEST_SKIP() << "nobody to lose on this node";
    }
  }
  // Calls `others` on all ranks but the last.
  void run_beside_fault(const Problem& p,
                        milliseconds timeout,
                        const std::function<void(Rank&)>& others) {
    run_ranks(
        p,
        [&](Rank& r) {
          r.group.barrier("made");
          if (r.group.rank() != last()) {
            r.gpu.set_dead(last(), true);
            others(r);
            ++num_done_;
            return;
          }
          const DeviceInput in = put(r, make_input(p, last(), 9));
          EXPECT_THROW(dispatch_and_check(r, in), CommError);
          has_told_ = true;
          EXPECT_TRUE(wait_until([&] { return num_done_ == last(); }));
        },
        timeout);
  }
  void await_fault() const {
    EXPECT_TRUE(wait_until([&] { return has_told_.load(); }));
  }

  std::atomic<bool> has_told_{false};
  std::atomic<int> num_done_{0};
};

// The fault ends none of the others' calls.
TEST_P(LowLatencyCudaGivenUp, GoesOnThoughItTellsOfAFault) {
  const Problem p = uneven_problem();
  const Reference reference = run_on_cpu(p, {kNone}, 10, last());
  run_beside_fault(p, milliseconds(800), [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i == calls.size() / 2) {
        await_fault();
      }
      check_call(r, calls[i]);
    }
    r.group.set_dead(last(), false);  // for the barrier at the end
  });
}

// The rank is then taken back.  The others miss it, but the fault that it told before ends no call.
TEST_P(LowLatencyCudaGivenUp, ForgetsWhatItToldBefore) {
  const Problem p = uneven_problem();
  const Reference reference = run_on_cpu(p, {kNone}, 1, last());
  run_beside_fault(p, milliseconds(500), [&](Rank& r) {
    const DeviceInput in = put(r, make_input(p, r.group.rank(), 9));
    check_call(r, reference[static_cast<size_t>(r.group.rank())][0]);
    await_fault();
    r.gpu.set_dead(last(), false);
    comm_error_of([&] { dispatch_and_check(r, in); }, last());
  });
}

// Rank 1 tells of a fault, then the excluded rank tells of its own.  The others must hear that of
// rank 1.
TEST_P(LowLatencyCudaGivenUp, HearsOfAnothersFault) {
  if (num_ranks() < 3) {
    GTEST_SKIP() << "nobody to lose and to hear of on this node";
  }
  const Problem p = uneven_problem();
  const Reference reference = run_on_cpu(p, {kNone}, 1, last());
  const milliseconds timeout(500);
  std::atomic<int> num_told{0};
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
        if (rank != last()) {
          r.gpu.set_dead(last(), true);
          check_call(r, reference[static_cast<size_t>(rank)][0]);
        }
        const int turn = rank == 1 ? 0 : rank == last() ? 1 : 2;
        EXPECT_TRUE(wait_until([&] { return num_told >= turn; }));
        if (rank == last()) {
          EXPECT_THROW(dispatch_and_check(r, in), CommError);
        } else {
          expect_contains(soon_error_of([&] { dispatch_and_check(r, in); }, 1, timeout),
                          "expert id");
        }
        num_told += turn < 2;
        ++num_done_;
        EXPECT_TRUE(wait_until([&] { return num_done_ == num_ranks(); }));
        r.group.set_dead(last(), false);  // for the barrier at the end
      },
      timeout);
}

INSTANTIATE_TEST_SUITE_P(Groups, LowLatencyCudaFailures, on_gpu_ranks_and_nodes(), gpu_ranks_name);
INSTANTIATE_TEST_SUITE_P(Groups, LowLatencyCudaGivenUp, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
