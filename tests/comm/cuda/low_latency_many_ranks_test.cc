// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency of more than 64 ranks, which share one GPU.  A process has fewer hardware queues than
// that, so a kernel may stand behind one that waits for it.  So halves are launched apart, and no
// rank launches one before all have done the half before.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

constexpr auto kPatience = std::chrono::seconds(60);

// Where the live ranks of a test meet; a group's barrier needs all ranks.
class Meeting {
 public:
  explicit Meeting(int num_ranks) : num_ranks_(num_ranks) {}

  // `number`: how often this rank has come before.
  void come(int number) {
    ++arrived_;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (arrived_ < (number + 1) * num_ranks_) {
      if (std::chrono::steady_clock::now() > end) {
        throw std::runtime_error("not every rank came to the meeting");
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

 private:
  const int num_ranks_;
  std::atomic<int> arrived_{0};
};

class ManyRanks : public LowLatencyCuda {
 protected:
  Problem problem(LowLatencySum sum) const {
    Problem p;
    p.routing = {
        .num_ranks = num_ranks(), .num_experts = 2 * num_ranks(), .topk = 6, .hidden = 1152};
    for (int r = 0; r < num_ranks(); ++r) {
      p.routing.tokens.push_back(r % 8);  // of max_tokens
    }
    p.max_tokens = 7;
    p.num_sms = 1;
    p.sum = sum;
    return p;
  }

  // Makes the calls of the reference; `meet` brings the live ranks together.
  static void check_in_halves(Rank& r,
                              const std::vector<Call>& calls,
                              const std::function<void()>& meet) {
    const auto half_is_done = [&] {
      r.stream.synchronize();
      meet();
    };
    for (const Call& call : calls) {
      const DeviceInput in = put(r, call.in);
      Pending<LowLatencyDispatchOutput> rows =
          r.gpu.dispatch_async({in.x, in.ids, call.cast, in.tags}, r.stream);
      half_is_done();
      rows.hook();
      const LowLatencyDispatchOutput got = rows.receive();
      r.finish();
      expect_dispatched(got, call);
      // A bank is told to be free by the combine, or by the dispatch after next.
      const Tensor y = call.cast == kNone ? r.up_batched(call.y, call.counts) : got.x;
      if (call.cast == kNone) {
        Pending<LowLatencyCombineOutput> sums =
            r.gpu.combine_async({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
        half_is_done();
        sums.hook();
        sums.receive();
        r.finish();
        expect_combined(in.out, call);
      }
      half_is_done();
    }
    expect_sent(r.gpu.statistics(), calls.back().sent, 1);
  }
};

TEST_P(ManyRanks, GiveWhatTheCpuGives) {
  const Problem p = problem(LowLatencySum::kSelections);
  const Reference reference = run_on_cpu(p, {kNone, LowLatencyCast::kFp8}, 3);
  run_ranks(
      p,
      [&](Rank& r) {
        check_in_halves(r, reference[static_cast<size_t>(r.group.rank())],
                        [&] { r.group.barrier("half"); });
      },
      kPatience);
}

// Ranks beyond the first word of a mask are excluded.
TEST_P(ManyRanks, GoOnWithoutAnExcludedOne) {
  if (num_ranks() > 128) {
    GTEST_SKIP()
        << "skipped: a GPU runs 128 kernels at a time, and the live ranks meet in one each";
  }
  const int dead = num_ranks() - 1;
  const Problem p = problem(LowLatencySum::kSelections);
  const Reference reference = run_on_cpu(p, {kNone}, 3, dead);
  Meeting meeting(num_ranks() - 1);
  run_ranks(
      p,
      [&](Rank& r) {
        r.group.barrier("made");
        if (r.group.rank() == dead) {
          return;
        }
        r.gpu.set_dead(dead, true);
        int number = 0;
        check_in_halves(r, reference[static_cast<size_t>(r.group.rank())],
                        [&] { meeting.come(number++); });
        EXPECT_TRUE(r.gpu.dead_ranks()[static_cast<size_t>(dead)]);
        r.group.set_dead(dead, false);  // for the barrier at the end
      },
      kPatience);
}

INSTANTIATE_TEST_SUITE_P(OneGpu,
                         ManyRanks,
                         ::testing::Values(GpuRanks{"peer", 65, 1},
                                           GpuRanks{"peer", 72, 1},
                                           GpuRanks{"peer", 96, 1},
                                           GpuRanks{"peer", 160, 1}),
                         gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
