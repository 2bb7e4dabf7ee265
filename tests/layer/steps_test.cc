// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls in steps: where they stop, what they give, several of them in flight on one transport, and
// what happens when one fails or is dropped.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "moebius/layer_call.h"
#include "moebius/modular_kernel.h"
#include "tests/layer/backends.h"
#include "tests/layer/fakes.h"
#include "tests/layer/modelled_link.h"
#include "tests/layer/small_layer.h"

namespace moebius::testing {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

constexpr int kRanks = 2;
constexpr int64_t kHidden = 64;
constexpr int64_t kTokens = 12;

ExpertsDesc one_expert_each(All2AllBackend backend, int64_t hidden = kHidden) {
  ExpertsDesc desc = fake_desc(kRanks, 1, hidden, format_of(backend));
  desc.num_local_experts = 1;
  return desc;
}

// A layer with one fake expert on each rank, and tokens of this rank for the next one's.
struct Layer {
  ModularKernel kernel;
  KernelInput input;
  Tensor output;

  Layer(All2AllBackend backend,
        Transports& transports,
        int seed,
        const KernelOptions& options = {},
        int64_t num_tokens = kTokens,
        int64_t hidden = kHidden)
      : kernel(make_backend(backend, transports, kRanks, num_tokens, hidden),
               std::make_unique<FakeExperts>(one_expert_each(backend, hidden)),
               nullptr,
               nullptr,
               options) {
    const Group& group = transports.group();
    const auto next = static_cast<int32_t>((group.rank() + 1) % group.size());
    input.hidden = random_tensor({num_tokens, hidden}, DType::kF32, 10 * seed + group.rank());
    input.topk_ids =
        ids_of({num_tokens, 1}, std::vector<int32_t>(static_cast<size_t>(num_tokens), next));
    input.topk_weights = random_tensor({num_tokens, 1}, DType::kF32, seed);
    input.num_experts = group.size();
    input.expert_map = ExpertPlacement::linear(group.size(), group.size()).expert_map(group.rank());
    output = Tensor::empty(input.hidden.shape(), DType::kF32);
    poison(output);
  }
  LayerCall start(const CallContext& context) { return kernel.start(input, output, {}, context); }
  // The output of a call that is not driven in steps.
  Tensor at_once(CallContext context) {
    const Tensor expected = Tensor::empty(output.shape(), output.dtype());
    poison(expected);
    kernel.forward(input, expected, {}, context);
    return expected;
  }
};

int num_points(LayerCall& call) {
  int points = 0;
  while (call.step()) {
    ++points;
  }
  return points;
}

TEST(Steps, StopAfterEachSendAndGiveTheSameBits) {
  for (const All2AllBackend backend : kBackends) {
    for (const int microbatches : {1, 2, 3}) {
      SCOPED_TRACE(std::string(name(backend)) + " " + std::to_string(microbatches));
      run_thread_ranks({.num_ranks = kRanks, .pin = false}, [&](Group& group) {
        Transports transports(group);
        Layer layer(backend, transports, 1,
                    {.microbatches = microbatches, .min_microbatch_tokens = 1});
        WorkspacePool workspaces;
        const CallContext context{Stream::cpu(1), &workspaces};
        const Tensor expected = layer.at_once(context);
        for (int repeat = 0; repeat < 2; ++repeat) {
          poison(layer.output);
          LayerCall call = layer.start(context);
          EXPECT_EQ(num_points(call), 2 * microbatches);
          EXPECT_TRUE(call.is_over());
          EXPECT_FALSE(call.step());
          expect_same_bits(layer.output, expected);
          EXPECT_EQ(layer.kernel.last_microbatches(), microbatches);
        }
      });
    }
  }
}

TEST(Steps, OfAWholeLayerAreThoseOfItsPieces) {
  for (const All2AllBackend backend : kBackends) {
    for (const int dp_size : {1, 2}) {
      SCOPED_TRACE(std::string(name(backend)) + " " + std::to_string(dp_size));
      run_thread_ranks({.num_ranks = 2, .pin = false}, [&](Group& group) {
        const Stream stream = Stream::cpu(1);
        const ParallelConfig parallel =
            ParallelConfig::make(2 / dp_size, group.rank() % (2 / dp_size), dp_size,
                                 dp_size == 2 ? group.rank() : 0, true, backend);
        MoeLayer layer(SmallLayer::shard(parallel), SmallLayer::options(), stream, &group);
        // Ranks of a TP group have the same tokens, and each takes half of them.
        const int64_t num_tokens = 2 * SmallLayer::kMaxTokens + 3;
        const Tensor hidden = random_tensor({num_tokens, SmallLayer::kHidden}, DType::kF32,
                                            dp_size == 2 ? 5 + group.rank() : 5);
        const Tensor expected = forward(layer, hidden, DType::kF32, stream);
        const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
        poison(output);
        WorkspacePool workspaces;
        LayerCall call = layer.start(hidden, output, {stream, &workspaces});
        const int pieces = backend != All2AllBackend::kLowLatency ? 1
                           : dp_size == 2                         ? 3
                                                                  : 2;  // of 8 tokens
        EXPECT_EQ(num_points(call), 2 * pieces);
        expect_same_bits(output, expected);
        EXPECT_EQ(layer.local_expert_load().numel(), 3);
      });
    }
  }
}

TEST(Steps, OfOneRankNeedNoGroup) {
  MoeLayer layer(SmallLayer::whole(), SmallLayer::options(), Stream::cpu(1));
  const Tensor hidden = random_tensor({5, SmallLayer::kHidden}, DType::kF32, 5);
  const Tensor expected = forward(layer, hidden, DType::kF32, Stream::cpu(1));
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
  WorkspacePool workspaces;
  LayerCall dropped = layer.start(hidden, output, {Stream::cpu(1), &workspaces});
  EXPECT_TRUE(dropped.step());
  dropped = LayerCall();
  LayerCall call = layer.start(hidden, output, {Stream::cpu(1), &workspaces});
  EXPECT_EQ(num_points(call), 2);
  expect_same_bits(output, expected);
}

// Two layers of several micro-batches each, whose steps alternate.
TEST(Steps, OfTwoLayersInFlightGiveTheSameBits) {
  struct Case {
    All2AllBackend backend;
    int microbatches;
  };
  for (const Case& c :
       {Case{All2AllBackend::kAllGatherReduceScatter, 2}, Case{All2AllBackend::kHighThroughput, 1},
        Case{All2AllBackend::kHighThroughput, 2}, Case{All2AllBackend::kHighThroughput, 4},
        Case{All2AllBackend::kLowLatency, 1}}) {
    SCOPED_TRACE(std::string(name(c.backend)) + " " + std::to_string(c.microbatches));
    const auto body = [&](Group& group) {
      Transports transports(group);
      const KernelOptions options{.microbatches = c.microbatches, .min_microbatch_tokens = 1};
      Layer first(c.backend, transports, 1, options);
      Layer second(c.backend, transports, 2, options);
      WorkspacePool workspaces;
      const CallContext one{Stream::cpu(1), &workspaces, 0};
      const CallContext two{Stream::cpu(1), &workspaces, 1};
      const Tensor expected_first = first.at_once(one);
      const Tensor expected_second = second.at_once(two);
      int64_t bytes = 0;
      for (int repeat = 0; repeat < 3; ++repeat) {
        poison(first.output);
        poison(second.output);
        LayerCall a = first.start(one);
        LayerCall b = second.start(two);
        bool more_of_a = true;
        bool more_of_b = true;
        while (more_of_a || more_of_b) {
          more_of_a = a.step();
          more_of_b = b.step();
        }
        expect_same_bits(first.output, expected_first);
        expect_same_bits(second.output, expected_second);
        bytes = repeat == 0 ? transports.bytes() : bytes;
        EXPECT_EQ(transports.bytes(), bytes);
      }
    };
    run_thread_ranks({.num_ranks = kRanks, .pin = false}, body);
    if (c.microbatches == 1) {
      run_thread_ranks({.num_ranks = kRanks, .ranks_per_node = 1, .pin = false}, body);
    }
  }
}

TEST(Steps, LeaveOtherLayersFree) {
  run_thread_ranks({.num_ranks = kRanks, .pin = false}, [](Group& group) {
    Transports transports(group);
    for (const All2AllBackend backend :
         {All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
      Layer first(backend, transports, 1);
      Layer second(backend, transports, 2);
      WorkspacePool workspaces;
      WorkspacePool others;
      const CallContext context{Stream::cpu(1), &workspaces};
      const CallContext elsewhere{Stream::cpu(1), &others};
      const Tensor expected = first.at_once(context);
      const Tensor expected_second = second.at_once(context);
      LayerCall call = first.start(context);
      EXPECT_TRUE(call.step());
      expect_same_bits(second.at_once(elsewhere), expected_second);
      // Low latency gives banks in turn, and the call has the next one.
      if (backend == All2AllBackend::kHighThroughput) {
        expect_same_bits(second.at_once(elsewhere), expected_second);
      }
      call.finish();
      expect_same_bits(first.output, expected);
    }
  });
}

TEST(Steps, WhatIsTooMuchIsRefusedByName) {
  run_thread_ranks({.num_ranks = kRanks, .pin = false}, [](Group& group) {
    Transports transports(group);
    constexpr auto kBackend = All2AllBackend::kLowLatency;
    Layer first(kBackend, transports, 1, {.microbatches = 2, .min_microbatch_tokens = 1});
    Layer second(kBackend, transports, 2);
    WorkspacePool workspaces;
    const CallContext one{Stream::cpu(1), &workspaces, 0};
    const CallContext two{Stream::cpu(1), &workspaces, 2};
    const Tensor expected_first = first.at_once(one);
    const Tensor expected_second = second.at_once(two);
    LayerCall call = first.start(one);
    EXPECT_TRUE(call.step());
    EXPECT_TRUE(call.step());
    LayerCall third = second.start(two);
    expect_error({"call 6 of a low-latency dispatch", "call 4", "at most 2"},
                 [&] { third.step(); });
    EXPECT_TRUE(third.is_over());
    call.finish();
    expect_same_bits(first.output, expected_first);
    expect_same_bits(second.at_once(two), expected_second);
  });
}

TEST(Steps, OneCallOfALayerAtATime) {
  const ExpertsDesc desc = fake_desc(1, 1, 8);
  const auto make_kernel = [&] {
    return ModularKernel(make_no_ep(), std::make_unique<FakeExperts>(desc));
  };
  ModularKernel kernel = make_kernel();
  ModularKernel other = make_kernel();
  WorkspacePool workspaces;
  const KernelInput input = random_input(desc, 3);
  const Tensor output = Tensor::empty({3, 8}, DType::kF32);
  const CallContext context{Stream::cpu(1), &workspaces};
  {
    LayerCall call = kernel.start(input, output, {}, context);
    expect_error({"a kernel is called while a call of it is under way"},
                 [&] { kernel.start(input, output, {}, context); });
    expect_error({"under way"}, [&] { kernel.forward(input, output, {}, context); });
    EXPECT_TRUE(call.step());
    expect_error({"workspaces of micro-batch 0 belong to a call that is under way"},
                 [&] { other.forward(input, output, {}, context); });
    other.forward(input, output, {}, {Stream::cpu(1), &workspaces, 1});
  }
  kernel.forward(input, output, {}, context);  // the dropped call has left nothing
  other.forward(input, output, {}, context);
  expect_error({"hidden"}, [&] { kernel.start({}, output, {}, context); });
}

// The peers learn at once what has happened, long before their deadline.
TEST(Steps, PeersLearnOfADroppedCall) {
  constexpr int kGuilty = 1;
  for (const All2AllBackend backend : kBackends) {
    for (const int after : {1, 2}) {
      SCOPED_TRACE(std::string(name(backend)) + " after " + std::to_string(after));
      std::string seen;
      const auto begin = std::chrono::steady_clock::now();
      const auto body = [&](Group& group) {
        Transports transports(group);
        Layer layer(backend, transports, 1);
        WorkspacePool workspaces;
        const CallContext context{Stream::cpu(1), &workspaces};
        LayerCall call = layer.start(context);
        if (group.rank() == kGuilty) {
          for (int i = 0; i < after; ++i) {
            EXPECT_TRUE(call.step());
          }
          call = LayerCall();
          // This rank cannot go on, either.
          EXPECT_THROW(group.barrier("after the drop"), CommError);
          return;
        }
        try {
          call.finish();
          layer.at_once(context);  // the other rank had sent all that the call needed
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), kGuilty);
          seen = error.what();
        }
      };
      run_thread_ranks({.num_ranks = kRanks, .timeout = milliseconds(20000), .pin = false}, body);
      expect_mentions(seen, {"rank 1 failed: it has dropped a layer call before its end"});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(10000));
    }
  }
}

TEST(Steps, ACallWithoutAStepIsDroppedSilently) {
  run_thread_ranks({.num_ranks = kRanks, .pin = false}, [](Group& group) {
    Transports transports(group);
    Layer layer(All2AllBackend::kHighThroughput, transports, 1);
    WorkspacePool workspaces;
    const CallContext context{Stream::cpu(1), &workspaces};
    if (group.rank() == 0) {
      layer.start(context);
    }
    const Tensor expected = layer.at_once(context);
    layer.start(context).finish();
    expect_same_bits(layer.output, expected);
  });
}

// The others exclude the rank that has dropped its call, and go on.
TEST(Steps, LowLatencyGoesOnWithoutTheRankThatDropped) {
  constexpr int kGuilty = 1;
  std::array<bool, kRanks> ended{};
  run_thread_ranks({.num_ranks = kRanks, .pin = false}, [&](Group& group) {
    Transports transports(group);
    Layer layer(All2AllBackend::kLowLatency, transports, 1);
    WorkspacePool workspaces;
    const CallContext context{Stream::cpu(1), &workspaces};
    LayerCall call = layer.start(context);
    EXPECT_TRUE(call.step());
    if (group.rank() == kGuilty) {
      return;
    }
    EXPECT_THROW(call.finish(), CommError);
    layer.kernel.set_dead(kGuilty, true);
    for (int repeat = 0; repeat < 3; ++repeat) {
      layer.start(context).finish();
      for (int64_t i = 0; i < layer.output.numel(); ++i) {
        ASSERT_EQ(get_float(layer.output, i), 0.0f);  // its tokens go to the dead rank
      }
    }
    ended[static_cast<size_t>(group.rank())] = true;
  });
  EXPECT_TRUE(ended[0]);
}

TEST(Steps, ErrorsAreThoseOfForwardAndEndTheCall) {
  for (const int at : {0, 1}) {
    const ExpertsDesc desc = fake_desc(1, 1, 8);
    ModularKernel kernel(make_no_ep(), std::make_unique<FailingExperts>(desc, at), nullptr, nullptr,
                         {.microbatches = 2, .min_microbatch_tokens = 1});
    WorkspacePool workspaces;
    const KernelInput input = random_input(desc, 4);
    const Tensor output = Tensor::empty({4, 8}, DType::kF32);
    const CallContext context{Stream::cpu(1), &workspaces};
    LayerCall call = kernel.start(input, output, {}, context);
    for (int i = 0; i < 2 + at; ++i) {
      EXPECT_TRUE(call.step());
    }
    expect_error({"expert 7 is on fire"}, [&] { call.step(); });
    EXPECT_TRUE(call.is_over());
    EXPECT_FALSE(call.step());
    const Tensor expected = Tensor::empty({4, 8}, DType::kF32);
    kernel.forward(input, expected, {}, context);
    kernel.start(input, output, {}, context).finish();
    expect_same_bits(output, expected);
  }
}

// Work of the caller between the steps, by a made-up clock, hides a slow link: all of the delay
// where it lasts as long.
TEST(Steps, WorkBetweenThemHidesTheDelay) {
  constexpr milliseconds kTransfer{240};
  constexpr int64_t kWide = 2048;
  constexpr SlowLink kLink{std::chrono::microseconds(0),
                           kTokens * kWide * 4 * 1000 / kTransfer.count()};
  for (const All2AllBackend backend :
       {All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
    const auto waited = [&](milliseconds work) {
      std::array<duration<double>, kRanks> by_rank;
      ModelledLinks links(kLink);
      run_thread_ranks({.num_ranks = kRanks, .pin = false}, [&](Group& base) {
        ModelledGroup group(base, links);
        Transports transports(group);
        Layer layer(backend, transports, 1, {}, kTokens, kWide);
        WorkspacePool workspaces;
        LayerCall call = layer.start({Stream::cpu(1), &workspaces});
        group.barrier("start");
        const auto before = group.waited();
        while (call.step()) {
          group.clock().compute(work);
        }
        by_rank[static_cast<size_t>(group.rank())] = group.waited() - before;
      });
      return std::max(by_rank[0], by_rank[1]);
    };
    const duration<double> delay = 2 * kTransfer;  // there and back
    EXPECT_GE(waited(milliseconds(0)) / delay, 0.9);
    EXPECT_LE(waited(milliseconds(180)) / delay, 0.4);
    EXPECT_LE(waited(milliseconds(260)) / delay, 0.1);
  }
}

}  // namespace
}  // namespace moebius::testing
