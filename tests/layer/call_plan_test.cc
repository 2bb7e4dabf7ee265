// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A plan is made of options and facts alone, so every decision is checked here without a kernel.
#include "layer/call_plan.h"

#include <gtest/gtest.h>

namespace moebius {
namespace {

constexpr KernelOptions kOptions{.chunk_tokens = 32768};

// Options for exactly so many micro-batches, however small they get.
KernelOptions cut_into(int microbatches) {
  return {.chunk_tokens = 32768, .microbatches = microbatches, .min_microbatch_tokens = 0};
}

// Eight GPUs run DeepSeek-V3's sizes over high throughput, and everything is possible.
CallFacts eight_gpus(int64_t num_tokens) {
  CallFacts facts;
  facts.num_tokens = facts.fewest_tokens = num_tokens;
  facts.device = Device::cuda(0);
  facts.num_sms = 132;
  facts.comm_sms = 24;
  facts.finalize_sms = 16;
  facts.num_ranks = 8;
  facts.num_experts = 256;
  facts.topk = 8;
  facts.hidden = 7168;
  facts.takes_addend = facts.takes_columns = facts.gives_parts = facts.can_come_in_waves = true;
  return facts;
}

CallFacts eight_cpus(int64_t num_tokens) {
  CallFacts facts = eight_gpus(num_tokens);
  facts.device = Device::cpu();
  facts.num_sms = facts.comm_sms = facts.finalize_sms = 0;
  facts.can_come_in_waves = false;
  return facts;
}

TEST(CallPlan, TheRankWithFewestTokensBoundsTheMicrobatches) {
  KernelOptions options = kOptions;
  options.microbatches = 4;
  CallFacts facts = eight_cpus(128);
  for (const auto& [fewest, count] : {std::pair{0, 1}, {31, 1}, {64, 2}, {127, 3}, {1000, 4}}) {
    facts.fewest_tokens = fewest;
    EXPECT_EQ(plan_call(options, facts).num_microbatches, count) << fewest << " tokens";
  }
  options.min_microbatch_tokens = 10;
  facts.fewest_tokens = 25;
  EXPECT_EQ(plan_call(options, facts).num_microbatches, 2);
}

TEST(CallPlan, RanksAreAskedOnlyWhereTheAnswerMatters) {
  EXPECT_FALSE(asks_for_fewest_tokens(kOptions));
  EXPECT_TRUE(asks_for_fewest_tokens({.microbatches = 2}));
  EXPECT_FALSE(asks_for_fewest_tokens({.microbatches = 2, .min_microbatch_tokens = 0}));
  CallFacts facts = eight_cpus(1);
  EXPECT_EQ(plan_call(cut_into(2), facts).num_microbatches, 2);
}

TEST(CallPlan, RowsComeInWavesOnlyWhereThatPays) {
  EXPECT_EQ(plan_call(kOptions, eight_gpus(4096)).early_rows, 16384);
  EXPECT_EQ(plan_call(kOptions, eight_gpus(2047)).early_rows, 0) << "ranks have few tokens";
  EXPECT_EQ(plan_call(kOptions, eight_cpus(4096)).early_rows, 0) << "on the CPU";

  CallFacts facts = eight_gpus(4096);
  facts.has_shared = true;
  EXPECT_EQ(plan_call(kOptions, facts).early_rows, 0) << "shared experts hide the dispatch";
  facts.gives_parts = false;
  EXPECT_EQ(plan_call(kOptions, facts).early_rows, 16384);
  facts.can_come_in_waves = false;
  EXPECT_EQ(plan_call(kOptions, facts).early_rows, 0);

  KernelOptions options = kOptions;
  options.early_rows = 7;
  EXPECT_EQ(plan_call(options, eight_gpus(1)).early_rows, 7) << "as asked";
  EXPECT_EQ(plan_call(cut_into(2), eight_gpus(4096)).early_rows, 0)
      << "micro-batches overlap already";
}

TEST(CallPlan, ResultsReturnInPartsByTheRowsOfTheRankWithMost) {
  const CallPlan plan = plan_call(kOptions, eight_gpus(4096));
  EXPECT_EQ(plan.combine_parts(1), 1);
  EXPECT_EQ(plan.combine_parts(16384), 4);
  EXPECT_EQ(plan.combine_parts(32769), 1) << "chunks return whole";
  CallFacts facts = eight_gpus(4096);
  facts.takes_columns = false;
  EXPECT_EQ(plan_call(kOptions, facts).combine_parts(16384), 1);
  facts = eight_gpus(4096);
  facts.gives_parts = false;
  EXPECT_EQ(plan_call(kOptions, facts).combine_parts(16384), 1);
}

TEST(CallPlan, SharedExpertsRunWhereNothingElseHidesTheTransfer) {
  EXPECT_FALSE(plan_call(kOptions, eight_cpus(4096)).shares_early(0));
  EXPECT_TRUE(plan_call(kOptions, eight_gpus(4096)).shares_early(0)) << "results go in parts";
  EXPECT_FALSE(plan_call(kOptions, eight_gpus(8)).shares_early(0)) << "the way back is longest";
  CallFacts facts = eight_gpus(8);
  facts.takes_columns = false;
  EXPECT_TRUE(plan_call(kOptions, facts).shares_early(0));

  const CallPlan plan = plan_call(cut_into(3), eight_cpus(4096));
  EXPECT_TRUE(plan.shares_early(0));
  EXPECT_FALSE(plan.shares_early(1));
  EXPECT_FALSE(plan.shares_early(2));
}

TEST(CallPlan, OnlyGpusComputeBesideTheCallsStream) {
  CallFacts facts = eight_gpus(8);
  EXPECT_TRUE(plan_call(kOptions, facts).counts_beside);
  EXPECT_FALSE(plan_call(kOptions, facts).shared_beside) << "there are no shared experts";
  facts.has_shared = true;
  EXPECT_TRUE(plan_call(kOptions, facts).shared_beside);
  EXPECT_TRUE(plan_call(kOptions, facts).finalize_adds_shared);
  facts.takes_addend = false;
  EXPECT_FALSE(plan_call(kOptions, facts).finalize_adds_shared);
  EXPECT_FALSE(plan_call(cut_into(2), facts).counts_beside) << "counts of the next micro-batch";
  facts = eight_cpus(8);
  facts.has_shared = true;
  EXPECT_FALSE(plan_call(kOptions, facts).counts_beside);
  EXPECT_FALSE(plan_call(kOptions, facts).shared_beside);
}

TEST(CallPlan, GemmsLeaveItsSmsToATransfer) {
  CallPlan plan = plan_call(kOptions, eight_gpus(8));
  EXPECT_EQ(plan.gemm_sms, 0) << "one micro-batch: nothing travels while experts compute";
  EXPECT_EQ(plan.sms_beside_prepare, 108);
  EXPECT_EQ(plan.sms_beside_finalize, 116);

  CallFacts facts = eight_gpus(8);
  facts.max_sms = 110;
  plan = plan_call(kOptions, facts);
  EXPECT_EQ(plan.gemm_sms, 110);
  EXPECT_EQ(plan.sms_beside_prepare, 108);
  EXPECT_EQ(plan.sms_beside_finalize, 110);

  EXPECT_EQ(plan_call(cut_into(2), eight_gpus(8)).gemm_sms, 108);
  facts = eight_gpus(8);
  facts.comm_sms = 132;
  EXPECT_EQ(plan_call(cut_into(2), facts).gemm_sms, 2) << "never none";
}

}  // namespace
}  // namespace moebius
