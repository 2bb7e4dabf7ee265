// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Micro-batches of a call: how many there are, how much of a slow link they hide, and what happens
// when one of them fails.  The conformance matrix (problems/layer_matrix.cc) checks that they give
// the bits of a call without them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "layer/overlap.h"
#include "moebius/all2all.h"
#include "moebius/parallel_config.h"
#include "tests/layer/backends.h"
#include "tests/layer/fakes.h"
#include "tests/layer/modelled_link.h"

namespace moebius::testing {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

constexpr int64_t kHidden = 2048;
constexpr int64_t kTokens = 64;

// Experts that take some time by a made-up clock.
class SlowExperts final : public FakeExperts {
 public:
  SlowExperts(ExpertsDesc desc, ModelTime per_row, ModelClock& clock)
      : FakeExperts(desc), per_row_(per_row), clock_(clock) {}

  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream& stream) const override {
    const int64_t rows = desc().format == ActivationFormat::kBatched
                             ? input.expert_num_tokens.data<int32_t>()[0]
                             : input.x.dim(0);
    clock_.compute(rows * per_row_);
    FakeExperts::apply(input, output, intermediate, scratch, stream);
  }

 private:
  ModelTime per_row_;
  ModelClock& clock_;
};

ExpertsDesc one_local_expert(int num_ranks, ActivationFormat format) {
  ExpertsDesc desc = fake_desc(num_ranks, 1, kHidden, format);
  desc.num_local_experts = 1;
  return desc;
}

// A backend with one expert on each rank.
std::unique_ptr<PrepareFinalize> make(All2AllBackend backend, Group& group) {
  return make_backend(backend, group, group.size(), kTokens, kHidden);
}

// A call in which every token goes to the expert of the next rank.
struct Tokens {
  KernelInput input;
  Tensor output;
  Tensor shared;

  Tokens(const Group& group, int64_t num_tokens, bool has_shared) {
    const auto next = static_cast<int32_t>((group.rank() + 1) % group.size());
    input.hidden = random_tensor({num_tokens, kHidden}, DType::kF32, group.rank());
    input.topk_ids =
        ids_of({num_tokens, 1}, std::vector<int32_t>(static_cast<size_t>(num_tokens), next));
    input.topk_weights = random_tensor({num_tokens, 1}, DType::kF32, 9);
    input.num_experts = group.size();
    input.expert_map = ExpertPlacement::linear(group.size(), group.size()).expert_map(group.rank());
    output = Tensor::empty({num_tokens, kHidden}, DType::kF32);
    poison(output);
    if (has_shared) {
      shared = Tensor::empty({num_tokens, kHidden}, DType::kF32);
      poison(shared);
    }
  }
};

// How long all of a rank's tokens take in one direction.
constexpr milliseconds kTransfer{240};
constexpr SlowLink kLink{std::chrono::microseconds(0),
                         kTokens* kHidden * 4 * 1000 / kTransfer.count()};

struct OverlapCase {
  All2AllBackend backend;
  int microbatches;
  // How long all of a rank's rows take to compute.
  milliseconds experts;
  milliseconds shared{0};
};

struct Waited {
  std::array<duration<double>, 2> by_rank;
  std::array<double, 2> hidden_share{};  // by the profile's intervals
  std::array<Tensor, 2> outputs;
};

// Every micro-batch has one dispatch and one combine in flight.
void expect_all_in_flight(const std::vector<Profile::Interval>& intervals, int microbatches) {
  for (int i = 0; i < microbatches; ++i) {
    for (const std::string name : {"dispatch", "combine"}) {
      EXPECT_EQ(std::count_if(intervals.begin(), intervals.end(),
                              [&](const Profile::Interval& interval) {
                                return interval.track == Profile::Track::kInFlight &&
                                       interval.name == name && interval.microbatch == i &&
                                       interval.bytes > 0;
                              }),
                1)
          << name << " of micro-batch " << i;
    }
  }
}

Waited run(const OverlapCase& c, int microbatches) {
  Waited result;
  ModelledLinks links(kLink);
  run_thread_ranks({.num_ranks = 2}, [&](Group& base) {
    ModelledGroup group(base, links);
    const auto rank = static_cast<size_t>(group.rank());
    const bool has_shared = c.shared.count() > 0;
    std::shared_ptr<const SharedExperts> shared;
    if (has_shared) {
      shared = std::make_shared<SharedExperts>(
          std::make_unique<SlowExperts>(fake_desc(1, 1, kHidden, ActivationFormat::kBatched),
                                        ModelTime(c.shared) / kTokens, group.clock()),
          Tensor());
    }
    ModularKernel kernel(
        make(c.backend, group),
        std::make_unique<SlowExperts>(one_local_expert(2, format_of(c.backend)),
                                      ModelTime(c.experts) / kTokens, group.clock()),
        shared, nullptr,
        {.microbatches = microbatches, .min_microbatch_tokens = kTokens / microbatches});
    WorkspacePool workspaces;
    const Tokens tokens(group, kTokens, has_shared);
    Profile profile(Profile::Keep::kIntervals,
                    [&] { return Profile::Clock::time_point(group.clock().now()); });
    group.barrier("start");
    const auto before = group.waited();
    group.set_profile(&profile);
    kernel.forward(tokens.input, tokens.output, tokens.shared,
                   {Stream::cpu(1), &workspaces, 0, &profile});
    group.set_profile(nullptr);
    result.by_rank[rank] = group.waited() - before;
    const std::vector<Profile::Interval> intervals = profile.intervals();
    result.hidden_share[rank] = measure_overlap(intervals).hidden_share();
    expect_all_in_flight(intervals, microbatches);
    EXPECT_EQ(kernel.last_microbatches(), microbatches);
    EXPECT_EQ(ints(kernel.last_expert_load()), (std::vector<int32_t>{kTokens}));
    result.outputs[rank] = tokens.output;
    if (has_shared) {
      expect_same_bits(tokens.shared, tokens.input.hidden);
    }
  });
  return result;
}

class OverlapTest : public ::testing::TestWithParam<OverlapCase> {};

TEST_P(OverlapTest, HidesThreeFifthsOfTheDelay) {
  const OverlapCase& c = GetParam();
  const duration<double> delay = 2 * kTransfer;  // there and back
  const Waited without = run(c, 1);
  const Waited with = run(c, c.microbatches);
  for (const size_t rank : {0u, 1u}) {
    expect_same_bits(with.outputs[rank], without.outputs[rank]);
    EXPECT_GE(1 - with.by_rank[rank] / delay, 0.6);
    EXPECT_GE(with.hidden_share[rank], 0.6);
    // Checks that the link is as slow as intended.  Without micro-batches ranks wait for the whole
    // delay, except on the way back if shared experts are computed meanwhile.
    EXPECT_GE(without.by_rank[rank] / delay, c.shared.count() > 0 ? 0.4 : 0.8);
    if (c.shared.count() == 0) {
      EXPECT_EQ(without.hidden_share[rank], 0);
    }
  }
  std::printf(
      "%s, %d micro-batches: %.1f %% of the delay hidden, share hidden %.1f %%, without %.1f\n",
      std::string(name(c.backend)).c_str(), c.microbatches,
      100 * (1 - std::max(with.by_rank[0], with.by_rank[1]) / delay),
      100 * std::min(with.hidden_share[0], with.hidden_share[1]),
      100 * std::max(without.hidden_share[0], without.hidden_share[1]));
}

// Without shared experts there is nothing to compute while the first rows come and the last return.
constexpr OverlapCase kOverlaps[] = {
    {All2AllBackend::kHighThroughput, 4, milliseconds(600)},
    {All2AllBackend::kHighThroughput, 2, milliseconds(300), milliseconds(360)},
    {All2AllBackend::kLowLatency, 2, milliseconds(300), milliseconds(360)},
};

INSTANTIATE_TEST_SUITE_P(
    Backends, OverlapTest, ::testing::ValuesIn(kOverlaps), [](const auto& test) {
      return std::string(name(test.param.backend)) + "_" + std::to_string(test.param.microbatches);
    });

// The number of micro-batches that each of two ranks takes.
std::array<int, 2> agreed(All2AllBackend backend,
                          std::array<int64_t, 2> num_tokens,
                          const KernelOptions& options) {
  std::array<int, 2> taken{};
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    ModularKernel kernel(make(backend, group),
                         std::make_unique<FakeExperts>(one_local_expert(2, format_of(backend))),
                         nullptr, nullptr, options);
    WorkspacePool workspaces;
    const Tokens tokens(group, num_tokens[rank], false);
    for (int call = 0; call < 2; ++call) {
      kernel.forward(tokens.input, tokens.output, {}, {Stream::cpu(1), &workspaces});
    }
    taken[rank] = kernel.last_microbatches();
  });
  return taken;
}

TEST(Microbatches, AreAsManyAsTheRankWithFewestTokensCanFill) {
  for (const auto backend : kBackends) {
    SCOPED_TRACE(name(backend));
    const KernelOptions options{.microbatches = 4, .min_microbatch_tokens = 10};
    const auto both = [](int n) { return std::array{n, n}; };
    EXPECT_EQ(agreed(backend, {64, 64}, options), both(4));
    EXPECT_EQ(agreed(backend, {64, 29}, options), both(2));
    EXPECT_EQ(agreed(backend, {19, 64}, options), both(1));
    EXPECT_EQ(agreed(backend, {0, 64}, options), both(1));
    EXPECT_EQ(agreed(backend, {0, 3}, {.microbatches = 4, .min_microbatch_tokens = 0}), both(4));
    EXPECT_EQ(agreed(backend, {64, 64}, {}), both(1));
  }
}

// Tokens for a single fake expert, whose output equals its input.
KernelInput one_expert_input(int64_t num_tokens) {
  return {.hidden = random_tensor({num_tokens, 8}, DType::kF32, 1),
          .topk_ids = Tensor::zeros({num_tokens, 1}, DType::kI32),
          .topk_weights = filled({num_tokens, 1}, DType::kF32, {1})};
}

TEST(Microbatches, OfOneRankHaveWorkspacesOfTheirOwn) {
  const ExpertsDesc desc = fake_desc(1, 1, 8);
  auto experts = std::make_unique<FakeExperts>(desc);
  const FakeExperts& fake = *experts;
  ModularKernel kernel(make_no_ep(), std::move(experts), nullptr, nullptr,
                       {.microbatches = 3, .min_microbatch_tokens = 2});
  WorkspacePool workspaces;
  const KernelInput input = one_expert_input(7);
  const Tensor output = Tensor::empty({7, 8}, DType::kF32);
  kernel.forward(input, output, {}, {Stream::cpu(1), &workspaces});
  expect_same_bits(output, input.hidden);
  ASSERT_EQ(fake.calls.size(), 3u);
  EXPECT_EQ(fake.calls[0].rows, 3);
  EXPECT_EQ(fake.calls[1].rows, 2);
  EXPECT_EQ(fake.calls[2].rows, 2);
  EXPECT_NE(fake.calls[0].intermediate, fake.calls[1].intermediate);
  EXPECT_NE(fake.calls[1].intermediate, fake.calls[2].intermediate);
  EXPECT_EQ(ints(kernel.last_expert_load()), (std::vector<int32_t>{7}));
}

TEST(Microbatches, NeedValidOptions) {
  const auto make_kernel = [](const KernelOptions& options) {
    ModularKernel kernel(make_no_ep(), std::make_unique<FakeExperts>(fake_desc(1, 1, 8)), nullptr,
                         nullptr, options);
  };
  EXPECT_THROW(make_kernel({.microbatches = 0}), InvalidArgument);
  EXPECT_THROW(make_kernel({.min_microbatch_tokens = -1}), InvalidArgument);
}

TEST(Microbatches, AreWorthTheirWeightsOnGpus) {
  const auto least = [](int64_t num_experts, int64_t topk, int num_ranks, Device device) {
    return default_min_microbatch_tokens(num_experts, topk, num_ranks, device);
  };
  EXPECT_EQ(least(256, 8, 8, Device::cpu()), 32);
  // 512 rows per expert: 2048 tokens of each of 8 ranks, 16384 of one alone.
  EXPECT_EQ(least(256, 8, 8, Device::cuda(0)), 2048);
  EXPECT_EQ(least(256, 8, 1, Device::cuda(0)), 16384);
  EXPECT_EQ(least(10, 3, 3, Device::cuda(0)), 569);  // 568.9 rounded up
  EXPECT_EQ(least(8, 8, 64, Device::cuda(0)), 32);   // 8, but never less than on CPUs
}

// The experts of one rank fail in one of its micro-batches.  The other ranks exclude it and go on.
TEST(Microbatches, GoOnAfterOneOfThemHasFailed) {
  constexpr int kRanks = 3;
  constexpr int kGuilty = 2;
  for (const int at : {0, 1, 2, 3}) {
    SCOPED_TRACE(at);
    std::array<bool, kRanks> ended{};
    const auto body = [&](Group& group) {
      const int rank = group.rank();
      const ExpertsDesc desc = one_local_expert(kRanks, ActivationFormat::kBatched);
      ModularKernel kernel(make(All2AllBackend::kLowLatency, group),
                           std::make_unique<FailingExperts>(desc, rank == kGuilty ? at : -1),
                           nullptr, nullptr, {.microbatches = 4, .min_microbatch_tokens = 0});
      WorkspacePool workspaces;
      const Tokens tokens(group, 6, false);
      const CallContext context{Stream::cpu(1), &workspaces};
      if (rank == kGuilty) {
        kernel.forward(tokens.input, tokens.output, {}, context);
        return;
      }
      try {
        kernel.forward(tokens.input, tokens.output, {}, context);
        ADD_FAILURE() << "rank " << rank << " does not notice";
      } catch (const CommError& error) {
        EXPECT_EQ(error.peer(), kGuilty) << error.what();
        EXPECT_NE(std::string(error.what()).find("expert 7 is on fire"), std::string::npos)
            << error.what();
      }
      kernel.set_dead(kGuilty, true);
      for (int call = 0; call < 3; ++call) {
        poison(tokens.output);
        kernel.forward(tokens.input, tokens.output, {}, context);
        EXPECT_EQ(kernel.last_microbatches(), 4);
        for (int64_t i = 0; i < tokens.output.numel(); ++i) {
          // Tokens of rank 0 go to rank 1, and those of rank 1 to the dead rank.
          const float expected = rank == 0 ? get_float(tokens.input.hidden, i) *
                                                 get_float(tokens.input.topk_weights, i / kHidden)
                                           : 0.0f;
          ASSERT_EQ(get_float(tokens.output, i), expected) << "call " << call << ", element " << i;
        }
      }
      ended[static_cast<size_t>(rank)] = true;
    };
    EXPECT_THROW(run_thread_ranks({.num_ranks = kRanks}, body), Error);
    EXPECT_TRUE(ended[0]);
    EXPECT_TRUE(ended[1]);
  }
}

// On one rank the kernel works again in the next call.
TEST(Microbatches, LeaveAKernelUsableThatFails) {
  ExpertsDesc desc = fake_desc(1, 1, 8);
  ModularKernel kernel(make_no_ep(), std::make_unique<FailingExperts>(desc, 1), nullptr, nullptr,
                       {.microbatches = 3, .min_microbatch_tokens = 0});
  WorkspacePool workspaces;
  const KernelInput input = one_expert_input(5);
  const Tensor output = Tensor::empty({5, 8}, DType::kF32);
  const CallContext context{Stream::cpu(1), &workspaces};
  EXPECT_THROW(kernel.forward(input, output, {}, context), Error);
  kernel.forward(input, output, {}, context);
  expect_same_bits(output, input.hidden);
}

}  // namespace
}  // namespace moebius::testing
