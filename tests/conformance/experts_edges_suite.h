// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of the experts stage at the edges, run for every entry of experts_impls(): sizes
// around blocks, experts without rows, masked and foreign selections, and NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "moebius/permute.h"
#include "moebius/slot_order.h"
#include "tests/conformance/experts_suite.h"

namespace moebius::experts_suite {

TEST_P(ExpertsContract, OddSizesAroundBlocks) {
  for (const int64_t hidden : {1, 7, 63, 65, 127, 129, 257, 513}) {
    for (const int64_t intermediate : {1, 31, 64, 65, 129, 257}) {
      SCOPED_TRACE("H " + std::to_string(hidden) + " I " + std::to_string(intermediate));
      const Problem problem = {"odd", 5, 3, 2, hidden, intermediate};
      expect_agrees(ExpertProblemMaker(14).make(problem, base_case()), kSchemes[0], impl());
      if (intermediate % 2 == 1) {
        const ExpertCase c = base_case(scheme_of("int8_w8a8_token"));
        expect_agrees(ExpertProblemMaker(15).make(problem, c), c.scheme, impl());
      }
    }
  }
}

TEST_P(ExpertsContract, RowsPerExpertAroundBlocks) {
  for (const int64_t rows :
       {1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 581}) {
    SCOPED_TRACE(rows);
    const Problem problem = {"rows", rows, 1, 1, 40, 24};
    expect_agrees(ExpertProblemMaker(16).make(problem, base_case()), kSchemes[0], impl());
  }
}

TEST_P(ExpertsContract, NoRows) {
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    const ExpertProblem p =
        ExpertProblemMaker(17).make({"some", 3, 4, 2, 64, 32}, base_case(scheme));
    if (!refusal(p, impl()).empty()) {
      continue;
    }
    ExpertsInput input = p.input;
    if (is_standard()) {
      input.x = p.input.x.slice(0, 0);
      input.topk_ids = p.input.topk_ids.slice(0, 0);
      input.topk_weights = p.input.topk_weights.slice(0, 0);
    } else {
      input.x = Tensor::empty({4, 0, 64}, p.input.x.dtype());
      input.expert_num_tokens = Tensor::zeros({4}, DType::kI32);
    }
    const auto experts = make(p, impl(), 2);
    EXPECT_EQ(run(*experts, input, stream_of(impl(), 2)).numel(), 0);
  }
}

TEST_P(ExpertsContract, EmptyExpertsAndAllRowsToOne) {
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    const ExpertProblem p = ExpertProblemMaker(18).make(kTiny, base_case(scheme));
    if (is_standard()) {
      // A token may select the same expert twice, too.
      std::fill_n(p.input.topk_ids.data<int32_t>(), p.input.topk_ids.numel(), 4);
    } else {
      int32_t* counts = p.input.expert_num_tokens.data<int32_t>();
      for (int64_t e = 1; e < kTiny.num_experts; ++e) {
        counts[e] = 0;
      }
    }
    expect_agrees(p, scheme, impl());
  }
}

// Masked and foreign selections count for no expert; experts that do not count refuse to.
TEST_P(ExpertsContract, RowsAreCountedByThoseWhoSaySo) {
  const ExpertProblem p = ExpertProblemMaker(26).make(kTiny, base_case());
  const auto experts = make(p, impl(), 2);
  const testing::Place place(stream_of(impl(), 2));
  std::vector<int32_t> expected(static_cast<size_t>(p.desc.num_local_experts), 0);
  if (is_standard()) {
    p.input.topk_ids.data<int32_t>()[0] = -1;
    for (int64_t i = 0; i < p.input.topk_ids.numel(); ++i) {
      if (const int32_t id = p.input.topk_ids.data<int32_t>()[i]; id >= 0) {
        ++expected[static_cast<size_t>(id)];
      }
    }
  }
  ExpertsInput input = p.input;
  input.row_counts = place.take(poisoned({p.desc.num_local_experts}, DType::kI32));
  if (!experts->traits().counts_rows) {
    EXPECT_THROW(apply(*experts, input, place.stream), InvalidArgument);
    return;
  }
  apply(*experts, input, place.stream);
  const Tensor counts = place.bring(input.row_counts);
  const int32_t* first = counts.data<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(first, first + counts.numel()), expected);
}

// The order that the experts would make themselves.
inline SlotOrder order_of(const ExpertProblem& p, const testing::Place& place) {
  const Tensor& ids = p.input.topk_ids;
  const int64_t num_experts = p.desc.num_local_experts;
  const Permutation order = allocate_permutation(ids.dim(0), ids.dim(1), num_experts);
  make_permutation(ids, {}, order, Stream::cpu(1));
  const Tensor counts = Tensor::empty({num_experts}, DType::kI32);
  for (int64_t e = 0; e < num_experts; ++e) {
    const int32_t* offsets = order.expert_offsets.data<int32_t>() + e;
    counts.data<int32_t>()[e] = offsets[1] - offsets[0];
  }
  const Tensor tokens = Tensor::empty({ids.numel()}, DType::kI32);
  std::transform(order.slot_of_row.data<int32_t>(), order.slot_of_row.data<int32_t>() + ids.numel(),
                 tokens.data<int32_t>(),
                 [&](int32_t slot) { return slot / static_cast<int32_t>(ids.dim(1)); });
  return {.expert_offsets = place.take(order.expert_offsets),
          .expert_counts = place.take(counts),
          .row_of_slot = place.take(order.row_of_slot),
          .token_of_row = place.take(tokens),
          .counters = place.take(Tensor::zeros({2}, DType::kI32))};
}

TEST_P(ExpertsContract, AnOrderIsTakenByThoseWhoSaySo) {
  const ExpertProblem p = ExpertProblemMaker(27).make(kTiny, base_case());
  const auto experts = make(p, impl(), 2);
  const testing::Place place(stream_of(impl(), 2));
  if (is_standard()) {
    p.input.topk_ids.data<int32_t>()[1] = -1;
  }
  ExpertsInput input = p.input;
  if (!experts->traits().takes_order) {
    const SlotOrder none;
    input.order = &none;
    EXPECT_THROW(apply(*experts, input, place.stream), InvalidArgument);
    return;
  }
  const Tensor expected = apply(*experts, input, place.stream);
  SlotOrder order = order_of(p, place);
  input.order = &order;
  EXPECT_TRUE(same_bits(apply(*experts, input, place.stream), expected));
  order.first_weights = place.take(Tensor::zeros({16}, DType::kU8));  // experts fetch what follows
  order.counters = place.take(Tensor::zeros({2}, DType::kI32));
  EXPECT_TRUE(same_bits(apply(*experts, input, place.stream), expected));
  order.row_of_slot = order.token_of_row;
  EXPECT_THROW(apply(*experts, input, place.stream), InvalidArgument);
}

TEST_P(ExpertsContract, NothingComputedGivesZeros) {
  if (!is_standard()) {
    GTEST_SKIP() << "masked selections exist in the standard format only";
  }
  const ExpertProblem p = ExpertProblemMaker(19).make(kTiny, base_case());
  std::fill_n(p.input.topk_ids.data<int32_t>(), p.input.topk_ids.numel(), -1);
  const Tensor output = run(p, impl());
  EXPECT_TRUE(same_bits(output, Tensor::zeros(output.shape(), output.dtype())));
}

TEST_P(ExpertsContract, MaskedSelectionsAreZeroAndChangeNothingElse) {
  if (!is_standard()) {
    GTEST_SKIP() << "masked selections exist in the standard format only";
  }
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    const ExpertProblem p = ExpertProblemMaker(20).make(kTiny, base_case(scheme));
    int32_t* ids = p.input.topk_ids.data<int32_t>();
    for (int64_t i = 0; i < p.input.topk_ids.numel(); i += 4) {
      ids[i] = -1;
    }
    expect_agrees(p, scheme, impl());
    if (!refusal(p, impl()).empty()) {
      continue;
    }
    const Tensor output = run(p, impl()).view({p.input.topk_ids.numel(), p.desc.hidden});
    for (int64_t i = 0; i < p.input.topk_ids.numel(); i += 4) {
      EXPECT_TRUE(same_bits(output[i], Tensor::zeros({p.desc.hidden}, output.dtype()))) << i;
    }
  }
}

// Experts are spread over ranks by a map that is neither linear nor contiguous.  Each rank computes
// its own experts, and the outputs of the ranks add up to the whole.
TEST_P(ExpertsContract, ExpertMapsSelectLocalExperts) {
  if (!is_standard()) {
    GTEST_SKIP() << "expert maps belong to topk_ids";
  }
  const ExpertProblem whole = ExpertProblemMaker(21).make(kTiny, base_case());
  const Tensor expected = run(whole, "ref");
  const std::vector<std::vector<int32_t>> owned = {{4, 0}, {1}, {5, 3, 2}};
  Tensor sum = Tensor::zeros(expected.shape(), DType::kF32);
  for (const auto& experts : owned) {
    ExpertProblem part = whole;
    const auto l = static_cast<int64_t>(experts.size());
    part.desc.num_local_experts = l;
    part.input.expert_map = Tensor::empty({kTiny.num_experts}, DType::kI32);
    std::fill_n(part.input.expert_map.data<int32_t>(), kTiny.num_experts, -1);
    part.weights.w1 = Tensor::empty({l, part.desc.w1_rows(), part.desc.hidden}, DType::kBF16);
    part.weights.w2 = Tensor::empty({l, part.desc.hidden, part.desc.intermediate}, DType::kBF16);
    for (int64_t i = 0; i < l; ++i) {
      const int32_t e = experts[static_cast<size_t>(i)];
      part.input.expert_map.data<int32_t>()[e] = static_cast<int32_t>(i);
      std::memcpy(part.weights.w1[i].raw(), whole.weights.w1[e].raw(),
                  static_cast<size_t>(part.weights.w1[i].nbytes()));
      std::memcpy(part.weights.w2[i].raw(), whole.weights.w2[e].raw(),
                  static_cast<size_t>(part.weights.w2[i].nbytes()));
    }
    const auto local = make(part, impl(), 2);
    const Tensor output = run(*local, part.input, stream_of(impl(), 2));
    for (int64_t i = 0; i < output.numel(); ++i) {
      const float own = get_float(output, i);
      if (own != 0) {
        EXPECT_EQ(sum.data<float>()[i], 0) << "two ranks computed element " << i;
        sum.data<float>()[i] = own;
      }
    }
  }
  EXPECT_LE(relative_error(sum, expected), tolerance_of(whole, kSchemes[0], impl()));
}

// Where no scale spans all rows, slices of the tokens give the rows of the whole.
TEST_P(ExpertsContract, ChunksGiveTheRowsOfTheWhole) {
  const ExpertProblem p = ExpertProblemMaker(22).make(kTiny, base_case());
  const auto experts = make(p, impl(), 2);
  EXPECT_EQ(experts->traits().supports_chunking, is_standard());
  if (!is_standard()) {
    return;
  }
  const Tensor whole = run(*experts, p.input, stream_of(impl(), 2));
  for (int64_t begin = 0; begin < kTiny.num_tokens; begin += 10) {
    const int64_t end = std::min(kTiny.num_tokens, begin + 10);
    ExpertsInput chunk = p.input;
    chunk.x = p.input.x.slice(begin, end);
    chunk.topk_ids = p.input.topk_ids.slice(begin, end);
    chunk.topk_weights = p.input.topk_weights.slice(begin, end);
    const Tensor rows = run(*experts, chunk, stream_of(impl(), 2));
    EXPECT_LE(relative_error(rows, whole.slice(begin, end)), tolerance_of(p, kSchemes[0], impl()));
  }
}

TEST_P(ExpertsContract, SecondCallOnTheSameObjectHasNoMemoryOfTheFirst) {
  const ExpertProblem p = ExpertProblemMaker(23).make(kTiny, base_case());
  const ExpertProblem larger =
      ExpertProblemMaker(24).make({"larger", 90, 6, 3, 96, 64}, base_case());
  const auto experts = make(p, impl(), 2);
  const Tensor before = valid_rows(p, run(*experts, p.input, stream_of(impl(), 2)));
  run(*experts, larger.input, stream_of(impl(), 2));
  EXPECT_TRUE(same_bits(before, valid_rows(p, run(*experts, p.input, stream_of(impl(), 2)))));
}

TEST_P(ExpertsContract, SaysWhoWeightsAndReduces) {
  const ExpertProblem p = ExpertProblemMaker().make(kTiny, base_case());
  const auto experts = make(p, impl(), 1);
  const ExpertsWorkspace ws = experts->workspace(10);
  if (is_standard() && experts->traits().weight_and_reduce == WeightAndReduceKind::kNoOp) {
    EXPECT_EQ(ws.output, (Shape{10, kTiny.hidden}));
  } else if (is_standard()) {
    EXPECT_EQ(experts->traits().weight_and_reduce, WeightAndReduceKind::kContiguous);
    EXPECT_EQ(ws.output, (Shape{10, kTiny.topk, kTiny.hidden}));
  } else {
    EXPECT_EQ(experts->traits().weight_and_reduce, WeightAndReduceKind::kDelegate);
    EXPECT_EQ(ws.output, (Shape{kTiny.num_experts, 10, kTiny.hidden}));
  }
  // run() gives rows weights of 1 or none, so it makes no difference whether they are already
  // applied.
  ExpertsInput weighted = p.input;
  weighted.apply_router_weight_on_input = true;
  EXPECT_TRUE(same_bits(valid_rows(p, run(*experts, p.input, stream_of(impl(), 1))),
                        valid_rows(p, run(*experts, weighted, stream_of(impl(), 1)))));
}

TEST_P(ExpertsContract, NanInAWeightStaysInItsColumn) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.weight != QuantFormat::kFp8) {
      continue;
    }
    SCOPED_TRACE(scheme.name);
    const ExpertProblem p = ExpertProblemMaker(27).make(kTiny, base_case(scheme));
    if (!refusal(p, impl()).empty()) {
      continue;
    }
    constexpr int64_t kColumn = 5;
    for (int64_t e = 0; e < kTiny.num_experts; ++e) {
      p.weights.w2[e][kColumn].data<uint8_t>()[7] = 0xff;  // NaN in e4m3
    }
    const Tensor expected = run_valid_rows(p, "ref");
    const Tensor actual = run_valid_rows(p, impl());
    int64_t num_nan = 0;
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const bool is_nan = std::isnan(get_float(expected, i));
      num_nan += is_nan ? 1 : 0;
      ASSERT_EQ(std::isnan(get_float(actual, i)), is_nan) << i;
      ASSERT_TRUE(!is_nan || i % kTiny.hidden == kColumn) << i;
    }
    EXPECT_GT(num_nan, 0);
  }
}

TEST_P(ExpertsContract, NanInARowStaysInItsToken) {
  const ExpertProblem p = ExpertProblemMaker(26).make(kTiny, base_case());
  const Tensor before = run_valid_rows(p, impl());
  // Row 0 is that of token 0, or the first row of expert 0.
  set_float(p.input.x, 5, std::numeric_limits<float>::quiet_NaN());
  const Tensor after =
      run_valid_rows(p, impl()).view({before.numel() / kTiny.hidden, kTiny.hidden});
  const int64_t touched = is_standard() ? kTiny.topk : 1;
  for (int64_t r = 0; r < after.dim(0); ++r) {
    if (r < touched) {
      EXPECT_TRUE(std::isnan(get_float(after[r], 0))) << r;
    } else {
      EXPECT_TRUE(same_bits(after[r], before.view(after.shape())[r])) << r;
    }
  }
}

}  // namespace moebius::experts_suite
