// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks how items become tasks, and that a call ends when one of them fails.
#include "experts/cpu/tiles/item_tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "experts/cpu/tiles/tile_experts.h"
#include "problems/expert_problem.h"
#include "tests/conformance/experts_runs.h"

namespace moebius::cpu {
namespace {

struct Case {
  int64_t items;
  int64_t threads;
  int64_t blocks1;
  int64_t blocks2;
};

// How often each column block of each stage is computed, by item.
struct Counts {
  int whole = 0;
  int packed = 0;
  std::vector<int> gemm1;
  std::vector<int> gemm2;
};

TEST(ItemTasks, EveryBlockOnceAndStagesInOrder) {
  for (const Case& c :
       {Case{0, 4, 3, 5}, Case{1, 1, 48, 64}, Case{1, 2, 1, 1}, Case{3, 2, 7, 64},
        Case{4, 2, 48, 64}, Case{8, 2, 48, 64}, Case{9, 3, 5, 1}, Case{130, 64, 48, 64}}) {
    SCOPED_TRACE(::testing::Message() << c.items << " items, " << c.threads << " threads");
    const ItemTasks tasks(c.items, c.threads, c.blocks1, c.blocks2);
    EXPECT_EQ(tasks.num_whole() + tasks.num_split(), c.items);
    std::vector<Counts> counts(static_cast<size_t>(c.items));
    for (Counts& of_item : counts) {
      of_item.gemm1.resize(static_cast<size_t>(c.blocks1));
      of_item.gemm2.resize(static_cast<size_t>(c.blocks2));
    }
    std::vector<int64_t> parts1(static_cast<size_t>(c.items));
    for (int64_t i = 0; i < tasks.size(); ++i) {
      const ItemTask task = tasks[i];
      Counts& of_item = counts.at(static_cast<size_t>(task.item));
      if (task.stage == ItemStage::kWhole) {
        EXPECT_LT(task.item, tasks.num_whole());
        ++of_item.whole;
        continue;
      }
      EXPECT_EQ(task.item, tasks.num_whole() + task.split);
      EXPECT_LT(task.split, tasks.num_split());
      if (task.stage == ItemStage::kPack) {
        ++of_item.packed;
        continue;
      }
      EXPECT_EQ(of_item.packed, 1);
      EXPECT_LT(task.begin, task.end);
      const bool is_first = task.stage == ItemStage::kGemm1;
      int64_t& done = parts1.at(static_cast<size_t>(task.item));
      if (is_first) {
        ++done;
      }
      EXPECT_TRUE(is_first || done == tasks.num_parts1());
      for (int64_t b = task.begin; b < task.end; ++b) {
        ++(is_first ? of_item.gemm1 : of_item.gemm2).at(static_cast<size_t>(b));
      }
    }
    for (size_t item = 0; item < counts.size(); ++item) {
      const bool is_split = static_cast<int64_t>(item) >= tasks.num_whole();
      EXPECT_EQ(counts[item].whole, is_split ? 0 : 1);
      EXPECT_EQ(counts[item].packed, is_split ? 1 : 0);
      EXPECT_EQ(counts[item].gemm1, std::vector<int>(counts[item].gemm1.size(), is_split));
      EXPECT_EQ(counts[item].gemm2, std::vector<int>(counts[item].gemm2.size(), is_split));
    }
  }
}

TEST(ItemTasks, TheLastItemsAreSplitAndFewAreAll) {
  EXPECT_EQ(ItemTasks(8, 2, 48, 64).num_split(), 2);
  EXPECT_EQ(ItemTasks(3, 2, 48, 64).num_split(), 3);
  EXPECT_EQ(ItemTasks(8, 1, 48, 64).num_split(), 0);
  EXPECT_EQ(ItemTasks(8, 1, 48, 64).size(), 8);
}

using experts_suite::run;
using experts_suite::same_bits;

std::atomic<int> products_left;

// The product that fails does so late, when the other threads already wait for it.
void multiply_or_fail(const TileGemm& gemm, const TileEpilogue& epilogue, TileRest& rest) {
  if (products_left.fetch_sub(1) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    throw std::bad_alloc();
  }
  plain_tiles().multiply(gemm, epilogue, rest);
}

// Whichever product fails, in whole items or in parts, the call ends, and the next call works.
TEST(TileExperts, AFailedProductEndsTheCall) {
  const TileKernels kernels = {"failing", Operand::kF32, multiply_or_fail, plain_tiles().finish};
  const ExpertProblem p = ExpertProblemMaker(3).make({"failing", 40, 5, 2, 160, 96}, {});
  for (const int threads : {1, 2, 4}) {
    SCOPED_TRACE(threads);
    const Stream stream = Stream::cpu(threads);
    const auto experts = make_tile_experts(p.desc, p.weights, stream, "failing", kernels);
    constexpr int kEnough = 1 << 20;
    products_left = kEnough;
    const Tensor expected = run(*experts, p.input, stream);
    const int num_products = kEnough - products_left;
    for (int n = 0; n < num_products; n += 1 + num_products / 23) {
      products_left = n;
      EXPECT_THROW(run(*experts, p.input, stream), std::bad_alloc) << n;
    }
    products_left = kEnough;
    EXPECT_TRUE(same_bits(expected, run(*experts, p.input, stream)));
  }
}

}  // namespace
}  // namespace moebius::cpu
