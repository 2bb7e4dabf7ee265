// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank misbehaves inside a layer.  With every backend, each other rank reports that in time and
// names the rank, the operation and the epoch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <regex>
#include <thread>

#include "problems/layer_matrix.h"

namespace moebius::testing {
namespace {

using Clock = std::chrono::steady_clock;

enum class Fault { kThrows, kLeaves, kSkips, kStalls };
constexpr Fault kFaults[] = {Fault::kThrows, Fault::kLeaves, Fault::kSkips, Fault::kStalls};

std::string_view name(Fault fault) {
  constexpr std::string_view kNames[] = {"throws", "leaves", "skips", "stalls"};
  return kNames[static_cast<size_t>(fault)];
}

constexpr int kRanks = 4;
constexpr int kGuilty = 2;
constexpr int kSteps = 3;  // calls of the layer; the fault is in the second
constexpr std::chrono::milliseconds kShortTimeout{1000};
constexpr std::chrono::milliseconds kLongTimeout{60'000};
constexpr std::string_view kEndOfStep = "end of step";

// Calls the interruption between prepare and finalize, where the experts compute.
class Interrupted final : public PrepareFinalize {
 public:
  Interrupted(std::unique_ptr<PrepareFinalize> base, std::function<void(int)> interruption)
      : PrepareFinalize(traits_of(*base)),
        base_(std::move(base)),
        interruption_(std::move(interruption)) {}

  void forget(int microbatch) override { base_->forget(microbatch); }
  Support accepts(WeightAndReduceKind kind) const override { return base_->accepts(kind); }
  Support accepts(const QuantConfig& quant, bool defer) const override {
    return base_->accepts(quant, defer);
  }
  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    return base_->prepare(input, context);
  }
  void finalize(const FinalizeInput& input, const CallContext& context) override {
    interruption_(context.microbatch);
    base_->finalize(input, context);
  }
  Pending<PrepareResult> prepare_async(const PrepareInput& input,
                                       const CallContext& context) override {
    return base_->prepare_async(input, context);
  }
  Pending<void> finalize_async(const FinalizeInput& input, const CallContext& context) override {
    interruption_(context.microbatch);
    return base_->finalize_async(input, context);
  }

 private:
  // The traits of `base` that hold with the interruption, too.
  static PrepareFinalizeTraits traits_of(const PrepareFinalize& base) {
    PrepareFinalizeTraits traits = base.traits();
    traits.takes_final_output = traits.takes_columns = traits.takes_addend = false;
    traits.placed_experts = {};
    return traits;
  }

  std::unique_ptr<PrepareFinalize> base_;
  std::function<void(int microbatch)> interruption_;
};

struct Outcome {
  std::string message;
  int peer = -1;  // the rank to blame
  std::chrono::milliseconds took{};
};

struct FailureCase {
  LayerBackend backend;
  int ranks_per_node = 0;
  Fault fault = Fault::kThrows;
  int microbatches = 1;

  std::string label() const {
    return fmt::format("{}_{}{}{}", backend.name, name(fault),
                       ranks_per_node == 0 ? "" : "_two_nodes",
                       microbatches == 1 ? "" : fmt::format("_microbatches{}", microbatches));
  }

  // Ranks of a node that wait for signals cannot see that a peer is in another call.
  bool needs_deadline() const {
    const bool by_signals = backend.name == "low_latency" && ranks_per_node == 0;
    return fault == Fault::kStalls || (fault == Fault::kSkips && by_signals);
  }
  std::chrono::milliseconds timeout() const {
    return needs_deadline() ? kShortTimeout : kLongTimeout;
  }
};

void PrintTo(const FailureCase& c, std::ostream* out) {
  *out << c.label();
}

std::vector<Outcome> run(const FailureCase& c) {
  LayerProblem problem(
      {"unquantized", {}, 256}, {"cpu_portable", "cpu_portable", Precision::kModel},
      {.name = "uneven", .calls = {LayerCall::kUneven}}, kRanks, c.backend.is_monolithic);
  std::vector<Outcome> outcomes(kRanks);
  std::atomic<int> reports{0};
  const auto body = [&](Group& group) {
    const int rank = group.rank();
    const bool is_guilty = rank == kGuilty;
    int step = 0;
    const auto interrupt = [&](int microbatch) {
      if (!is_guilty || step != 1 || microbatch != c.microbatches / 2) {
        return;
      }
      if (c.fault == Fault::kThrows) {
        throw Error("expert 7 is on fire");
      }
      if (c.fault == Fault::kStalls) {  // until all other ranks have reported an error
        const auto limit = Clock::now() + kLongTimeout / 2;
        while (reports < kRanks - 1 && Clock::now() < limit) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    };
    ModularKernel kernel(
        std::make_unique<Interrupted>(
            c.backend.make(group, problem.placement(), problem.desc(rank, c.backend.format)),
            interrupt),
        problem.make_experts(rank, c.backend.format, Stream::cpu(1)), nullptr,
        c.backend.is_monolithic ? problem.make_router(Device::cpu()) : nullptr,
        {.microbatches = c.microbatches, .min_microbatch_tokens = 0});
    WorkspacePool workspaces;
    const LayerInput& in = problem.input(0, rank);
    const Tensor output = Tensor::empty(in.hidden.shape(), in.hidden.dtype());
    const KernelInput input{.hidden = in.hidden,
                            .topk_ids = in.topk_ids,
                            .topk_weights = in.topk_weights,
                            .router_logits = in.logits,
                            .num_experts = problem.placement().num_experts(),
                            .expert_map = problem.placement().expert_map(rank)};
    for (; step < kSteps; ++step) {
      const bool is_faulty = is_guilty && step == 1;
      if (is_faulty && c.fault == Fault::kLeaves) {
        return;
      }
      if (!is_faulty || c.fault != Fault::kSkips) {
        kernel.forward(input, output, {}, {Stream::cpu(1), &workspaces});
      }
      group.barrier(kEndOfStep);
    }
  };
  const ThreadGroupOptions options{
      .num_ranks = kRanks, .ranks_per_node = c.ranks_per_node, .timeout = c.timeout()};
  const auto timed = [&](Group& group) {
    Outcome& outcome = outcomes[static_cast<size_t>(group.rank())];
    const auto begin = Clock::now();
    struct Report {
      std::atomic<int>& count;
      ~Report() { ++count; }
    } const report{reports};
    try {
      body(group);
    } catch (const std::exception& error) {
      const auto* comm = dynamic_cast<const CommError*>(&error);
      outcome.peer = comm == nullptr ? -1 : comm->peer();
      outcome.message = error.what();
      outcome.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      throw;
    }
  };
  EXPECT_ANY_THROW(run_thread_ranks(options, timed));
  return outcomes;
}

// What the report of every other rank must mention.
std::vector<std::string> expected_parts(const FailureCase& c) {
  switch (c.fault) {
    case Fault::kThrows:
      return {fmt::format("rank {} failed: expert 7 is on fire", kGuilty)};
    case Fault::kLeaves:
      return {fmt::format("rank {} has left", kGuilty)};
    case Fault::kStalls:
      return {fmt::format("rank {} did not come within 1000 ms", kGuilty), "expected"};
    case Fault::kSkips:
      break;
  }
  return c.needs_deadline()  // ranks wait for each other, so either may be named first
             ? std::vector<std::string>{fmt::format("rank {}", kGuilty), "did not come within",
                                        std::string(kEndOfStep), "low latency dispatch"}
             : std::vector<std::string>{fmt::format("rank {} is in \"{}\"", kGuilty, kEndOfStep)};
}

class LayerFailure : public ::testing::TestWithParam<FailureCase> {};

TEST_P(LayerFailure, IsReportedByEveryOtherRank) {
  const FailureCase& c = GetParam();
  const std::vector<Outcome> outcomes = run(c);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kGuilty) {
      continue;
    }
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    const std::regex place(fmt::format("rank {}: [a-z_ ]+, epoch [1-9][0-9]*: .*", rank));
    EXPECT_TRUE(std::regex_match(outcome.message, place)) << outcome.message;
    for (const std::string& part : expected_parts(c)) {
      EXPECT_NE(outcome.message.find(part), std::string::npos)
          << '"' << part << "\" is not in: " << outcome.message;
    }
    if (c.fault != Fault::kSkips || !c.needs_deadline()) {
      EXPECT_EQ(outcome.peer, kGuilty) << outcome.message;
    }
    EXPECT_LT(outcome.took, kLongTimeout / 4);
  }
}

std::vector<FailureCase> cases() {
  std::vector<FailureCase> all;
  for (const LayerBackend& backend : layer_backends()) {
    for (const int ranks_per_node : {0, 2}) {
      for (const Fault fault : kFaults) {
        for (const int microbatches : {1, 2, 4}) {
          if (backend.over_ranks && (microbatches != 4 || ranks_per_node == 0)) {
            all.push_back({backend, ranks_per_node, fault, microbatches});
          }
        }
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         LayerFailure,
                         ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.label(); });

}  // namespace
}  // namespace moebius::testing
