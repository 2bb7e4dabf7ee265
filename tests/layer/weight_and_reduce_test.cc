// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/weight_and_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "problems/place.h"
#include "tests/gpu_test.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr auto kContiguous = WeightAndReduceKind::kContiguous;
constexpr auto kNaiveBatched = WeightAndReduceKind::kNaiveBatched;

Tensor reduce(WeightAndReduceKind kind,
              const WeightAndReduceInput& input,
              const Stream& stream = {},
              int64_t first_expert = 0) {
  const Tensor output = Tensor::empty({input.topk_ids.dim(0), input.expert_output.shape().back()},
                                      input.expert_output.dtype());
  poison(output);
  make_weight_and_reduce(kind, first_expert)->apply(input, output, stream);
  return output;
}

float round_to(DType dtype, float value) {
  return dtype == DType::kBF16  ? static_cast<float>(BFloat16(value))
         : dtype == DType::kF16 ? static_cast<float>(Float16(value))
                                : value;
}

// bf16 has 8 bits of significand, so in 256 + 1 + 1 each 1 is half a unit and is rounded to even.
TEST(Contiguous, TwoToFourSlotsAreAddedInTheDtype) {
  for (const int64_t topk : {3, 4}) {
    const auto x = filled({1, topk, 1}, DType::kBF16, {256, 1, 1, 1});
    const auto ids = ids_of({1, topk}, {0, 1, 2, 3});
    const auto ones = filled({1, topk}, DType::kF32, {1});
    EXPECT_EQ(floats(reduce(kContiguous, {x, ones, ids})), std::vector<float>{256});
  }
}

TEST(Contiguous, OtherCountsAreAddedInF32) {
  const auto x = filled({1, 5, 1}, DType::kBF16, {256, 1, 1, 1, 1});
  const auto ids = ids_of({1, 5}, {0, 1, 2, 3, 4});
  const auto ones = filled({1, 5}, DType::kF32, {1});
  EXPECT_EQ(floats(reduce(kContiguous, {x, ones, ids})), std::vector<float>{260});
}

TEST(Contiguous, SlotOrderDecidesTheRounding) {
  const auto ids = ids_of({1, 3}, {0, 1, 2});
  const auto ones = filled({1, 3}, DType::kF32, {1});
  const auto big_last = filled({1, 3, 1}, DType::kBF16, {1, 1, 256});
  EXPECT_EQ(floats(reduce(kContiguous, {big_last, ones, ids})), std::vector<float>{258});
}

// 1.0078125 = 1 + 2^-7 is exact in bf16, but its square is not and is rounded before it is added.
TEST(Contiguous, WeightedRowIsRoundedBeforeTheSum) {
  const float v = 1.0078125f;
  const auto x = filled({1, 1, 1}, DType::kBF16, {v});
  const auto weight = filled({1, 1}, DType::kF32, {v});
  EXPECT_EQ(floats(reduce(kContiguous, {x, weight, ids_of({1, 1}, {0})}))[0],
            round_to(DType::kBF16, v * v));
  // The weight itself stays f32.  In bf16, 1 + 2^-8 would be 1, and the product 1.5.
  const auto five = filled({1, 5, 1}, DType::kBF16, {1.5f, 0, 0, 0, 0});
  const auto fine = filled({1, 5}, DType::kF32, {1.0f + 0x1p-8f, 1, 1, 1, 1});
  EXPECT_EQ(floats(reduce(kContiguous, {five, fine, ids_of({1, 5}, {0, 1, 2, 3, 4})}))[0],
            1.5078125f);
}

TEST(Contiguous, MatchesTheFormulaForEveryDtypeAndTopk) {
  constexpr int64_t kTokens = 9;
  constexpr int64_t kHidden = 700;  // more than one block of partial sums
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t topk : {1, 2, 3, 4, 5, 8}) {
      const auto x = random_tensor({kTokens, topk, kHidden}, dtype, 1);
      const auto weights = random_tensor({kTokens, topk}, DType::kF32, 2);
      const auto ids = random_ids(kTokens, topk, 32, 3);
      const auto output = reduce(kContiguous, {x, weights, ids});
      const bool in_dtype = topk >= 2 && topk <= 4;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t h = 0; h < kHidden; ++h) {
          float sum = 0.0f;
          for (int64_t k = 0; k < topk; ++k) {
            const float term = round_to(dtype, get_float(x, (t * topk + k) * kHidden + h) *
                                                   get_float(weights, t * topk + k));
            sum = in_dtype ? round_to(dtype, sum + term) : sum + term;
          }
          ASSERT_EQ(get_float(output, t * kHidden + h), round_to(dtype, sum))
              << name(dtype) << " topk " << topk << " token " << t << " column " << h;
        }
      }
    }
  }
}

TEST(Contiguous, MaskedSlotsContributeNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto x = filled({2, 2, 1}, DType::kF32, {3, nan, nan, nan});
  const auto weights = filled({2, 2}, DType::kF32, {2, 1, nan, 1});
  EXPECT_EQ(floats(reduce(kContiguous, {x, weights, ids_of({2, 2}, {4, -1, -1, -1})})),
            (std::vector<float>{6, 0}));
}

TEST(Contiguous, WeightOnInputCountsAsOne) {
  const auto x = filled({2, 1, 2}, DType::kBF16, {1, 2, 3, 4});
  const auto weights = filled({2, 1}, DType::kF32, {0.5f, 0.25f});
  const auto ids = ids_of({2, 1}, {0, 1});
  EXPECT_EQ(floats(reduce(kContiguous, {x, weights, ids, true})), (std::vector<float>{1, 2, 3, 4}));
}

TEST(Contiguous, TakesFlatRowsToo) {
  const auto x = random_tensor({6, 4}, DType::kBF16, 1);
  const auto weights = random_tensor({3, 2}, DType::kF32, 2);
  const auto ids = random_ids(3, 2, 8, 3);
  expect_same_bits(reduce(kContiguous, {x, weights, ids}),
                   reduce(kContiguous, {x.view({3, 2, 4}), weights, ids}));
}

TEST(NaiveBatched, AddsExpertByExpertInTheDtype) {
  // Token 0 chose experts 2, 0, 1 in this order.  The sum in order 0, 1, 2 is 256 + 1 + 1 = 256.
  const auto ids = ids_of({1, 3}, {2, 0, 1});
  const auto x = filled({3, 2, 1}, DType::kBF16, {256, 99, 1, 99, 1, 99});
  const auto ones = filled({1, 3}, DType::kF32, {1});
  EXPECT_EQ(floats(reduce(kNaiveBatched, {x, ones, ids})), std::vector<float>{256});
  const auto other_order = filled({3, 2, 1}, DType::kBF16, {1, 99, 1, 99, 256, 99});
  EXPECT_EQ(floats(reduce(kNaiveBatched, {other_order, ones, ids})), std::vector<float>{258});
}

TEST(NaiveBatched, RowsAreInTokenOrderAndForeignOnesSkipped) {
  // Experts 4 and 5 are local.  Expert 4 has rows of tokens 0 and 2, expert 5 of tokens 1 and 2.
  const auto ids = ids_of({3, 2}, {4, 0, 5, -1, 4, 5});
  const auto x = filled({2, 2, 1}, DType::kF32, {10, 20, 30, 40});
  const auto weights = filled({3, 2}, DType::kF32, {1, 9, 2, 9, 3, 4});
  EXPECT_EQ(floats(reduce(kNaiveBatched, {x, weights, ids}, {}, /*first_expert=*/4)),
            (std::vector<float>{10, 60, 220}));
}

TEST(NaiveBatched, RefusesMoreRowsThanThereIsRoomFor) {
  const auto ids = ids_of({3, 1}, {0, 0, 0});
  const auto x = filled({1, 2, 1}, DType::kF32, {1});
  const auto ones = filled({3, 1}, DType::kF32, {1});
  expect_error({"expert 0", "3", "2"}, [&] { reduce(kNaiveBatched, {x, ones, ids}); });
}

TEST(NoOp, CopiesUnlessItIsTheOutput) {
  const auto x = random_tensor({5, 3}, DType::kBF16, 1);
  const auto ids = random_ids(5, 2, 8, 2);
  const auto weights = filled({5, 2}, DType::kF32, {7});
  const auto original = x.clone();
  expect_same_bits(reduce(WeightAndReduceKind::kNoOp, {x, weights, ids}), original);
  make_weight_and_reduce(WeightAndReduceKind::kNoOp)->apply({x, weights, ids}, x, {});
  expect_same_bits(x, original);
}

TEST(Delegate, CannotBeApplied) {
  const auto x = filled({1, 1, 1}, DType::kF32, {1});
  const auto one = filled({1, 1}, DType::kF32, {1});
  expect_error({"delegate"}, [&] {
    reduce(WeightAndReduceKind::kDelegate, {x, one, ids_of({1, 1}, {0})});
  });
}

TEST(WeightAndReduce, SameBitsForAnyNumberOfThreads) {
  const auto weights = random_tensor({37, 6}, DType::kF32, 2);
  const auto ids = random_ids(37, 6, 20, 3);
  const auto standard = random_tensor({37, 6, 130}, DType::kBF16, 1);
  const auto batched = random_tensor({20, 37, 130}, DType::kBF16, 1);
  for (const int threads : {2, 5}) {
    expect_same_bits(reduce(kContiguous, {standard, weights, ids}, Stream::cpu(1)),
                     reduce(kContiguous, {standard, weights, ids}, Stream::cpu(threads)));
    expect_same_bits(reduce(kNaiveBatched, {batched, weights, ids}, Stream::cpu(1)),
                     reduce(kNaiveBatched, {batched, weights, ids}, Stream::cpu(threads)));
  }
}

TEST(WeightAndReduce, NoTokens) {
  const auto none = Tensor::empty({0, 2}, DType::kI32);
  const auto no_weights = Tensor::empty({0, 2}, DType::kF32);
  const Tensor guard = filled({1, 4}, DType::kBF16, {7});
  const auto reduce_none = [&](WeightAndReduceKind kind, const Tensor& rows) {
    make_weight_and_reduce(kind)->apply({rows, no_weights, none}, guard.slice(0, 0), {});
    EXPECT_EQ(floats(guard), (std::vector<float>{7, 7, 7, 7})) << name(kind);
  };
  reduce_none(kContiguous, filled({1, 2, 4}, DType::kBF16, {1}).slice(0, 0));
  reduce_none(kNaiveBatched, filled({3, 2, 4}, DType::kBF16, {1}));
}

TEST(WeightAndReduce, ErrorsNameBothShapes) {
  const auto ids = ids_of({2, 2}, {0, 1, 2, 3});
  const auto weights = filled({2, 2}, DType::kF32, {1});
  const auto x = filled({2, 3, 4}, DType::kF32, {1});
  expect_error({"[2, 3, 4]", "[2, 2, 4]"}, [&] { reduce(kContiguous, {x, weights, ids}); });
  expect_error({"topk_weights", "[1, 2]", "[2, 2]"}, [&] {
    reduce(kContiguous, {x, weights.slice(0, 1), ids});
  });
  const auto reducer = make_weight_and_reduce(kContiguous);
  expect_error({"output", "[3, 4]", "[2, 4]"}, [&] {
    reducer->apply({x, weights, ids}, Tensor::empty({3, 4}, DType::kF32), {});
  });
  expect_error({"output", "bf16", "f32"}, [&] {
    reducer->apply({x, weights, ids}, Tensor::empty({2, 4}, DType::kBF16), {});
  });
  expect_error({"[2, 4]", "[2, 3, 4]"}, [&] {
    make_weight_and_reduce(WeightAndReduceKind::kNoOp)
        ->apply({x, weights, ids}, Tensor::empty({2, 4}, DType::kF32), {});
  });
}

TEST(WeightAndReduce, RefusesNoSelections) {
  const auto ids = Tensor::empty({3, 0}, DType::kI32);
  const auto weights = Tensor::empty({3, 0}, DType::kF32);
  expect_error({"topk_ids.dim(1) is 0, expected at least 1"}, [&] {
    reduce(kContiguous, {Tensor::empty({3, 0, 4}, DType::kF32), weights, ids});
  });
  const auto rows = filled({2, 3, 4}, DType::kF32, {1});
  expect_error({"topk_ids.dim(1) is 0, expected at least 1"}, [&] {
    reduce(kNaiveBatched, {rows, weights, ids});
  });
  expect_error({"row_of_slot.dim(1) is 0, expected at least 1"}, [&] {
    reduce_permuted_rows(rows.view({6, 4}), ids, {}, Tensor::empty({3, 4}, DType::kF32), {});
  });
}

Tensor reduce_there(const Place& place,
                    WeightAndReduceKind kind,
                    const WeightAndReduceInput& input,
                    int64_t first_expert) {
  const Tensor output = Tensor::empty({input.topk_ids.dim(0), input.expert_output.shape().back()},
                                      input.expert_output.dtype(), place.device());
  const WeightAndReduceInput there = {place.take(input.expert_output),
                                      place.take(input.topk_weights), place.take(input.topk_ids),
                                      input.apply_router_weight_on_input};
  make_weight_and_reduce(kind, first_expert)->apply(there, output, place.stream);
  return place.bring(output);
}

class WeightAndReduceOnGpu : public GpuTest {};

// Sizes with few tokens, whose columns are split, and with many; with one block of columns and
// several; and with odd widths.
TEST_F(WeightAndReduceOnGpu, GivesTheBitsOfTheCpu) {
  const Place gpu(DeviceType::kCuda);
  struct Size {
    int64_t num_tokens, hidden;
  };
  for (const Size& size : {Size{1, 7168}, {37, 2880}, {600, 264}, {33, 131}, {5, 1}}) {
    for (const int64_t topk : {1, 2, 3, 4, 6, 8, 11}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        SCOPED_TRACE("M " + std::to_string(size.num_tokens) + " H " + std::to_string(size.hidden) +
                     " K " + std::to_string(topk) + " " + std::string(name(dtype)));
        const auto weights = random_tensor({size.num_tokens, topk}, DType::kF32, 2);
        const auto ids = random_ids(size.num_tokens, topk, 24, 3);
        for (int64_t i = 0; i < ids.numel(); i += 7) {
          ids.data<int32_t>()[i] = -1;
        }
        const auto standard = random_tensor({size.num_tokens, topk, size.hidden}, dtype, 1);
        for (const bool on_input : {false, true}) {
          const WeightAndReduceInput input = {standard, weights, ids, on_input};
          expect_same_bits(reduce_there(gpu, kContiguous, input, 0), reduce(kContiguous, input));
        }
        // Experts 8..15 are local.
        const auto batched = random_tensor({8, size.num_tokens, size.hidden}, dtype, 4);
        const WeightAndReduceInput input = {batched, weights, ids};
        expect_same_bits(reduce_there(gpu, kNaiveBatched, input, 8),
                         reduce(kNaiveBatched, input, {}, 8));
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(WeightAndReduceOnGpu, GivesTheBitsOfTheCpuForExtremeValues) {
  const Place gpu(DeviceType::kCuda);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,  -0.0f, 1e-40f, -3e-39f, 6e-8f, -6e-5f, 65504.0f,
                                     -7e4f, 3e38f, -3e38f, inf,     -inf,  256.0f, 257.0f};
  const auto n = static_cast<int64_t>(values.size());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t topk : {2, 8}) {
      const Tensor rows = Tensor::empty({1, topk, n}, dtype);
      for (int64_t i = 0; i < rows.numel(); ++i) {
        set_float(rows, i, values[static_cast<size_t>((i % n + i / n * 3) % n)]);
      }
      for (const float weight : {1.0f, -0.5f, 3e38f, 1e-30f}) {
        const std::vector<float> weights(static_cast<size_t>(topk), weight);
        const WeightAndReduceInput input = {rows, filled({1, topk}, DType::kF32, weights),
                                            random_ids(1, topk, 16, 1)};
        const Tensor actual = reduce_there(gpu, kContiguous, input, 0);
        const Tensor expected = reduce(kContiguous, input);
        for (int64_t i = 0; i < n; ++i) {
          const float a = get_float(actual, i), e = get_float(expected, i);
          EXPECT_TRUE((std::isnan(a) && std::isnan(e)) ||
                      (a == e && std::signbit(a) == std::signbit(e)))
              << name(dtype) << " K " << topk << " weight " << weight << " element " << i << ": "
              << a << ", on the CPU " << e;
        }
      }
    }
  }
}

TEST_F(WeightAndReduceOnGpu, NoOpCopies) {
  const Place gpu(DeviceType::kCuda);
  const auto x = random_tensor({5, 3}, DType::kBF16, 1);
  const WeightAndReduceInput input = {x, filled({5, 2}, DType::kF32, {7}), random_ids(5, 2, 8, 2)};
  expect_same_bits(reduce_there(gpu, WeightAndReduceKind::kNoOp, input, 0), x);
}

TEST(ReducePermutedRows, FindsRowsWhereverTheyAre) {
  const auto rows = filled({4, 1}, DType::kF32, {1, 10, 100, 1000});
  const auto row_of_slot = ids_of({2, 2}, {3, 0, -1, 2});
  const auto weights = filled({2, 2}, DType::kF32, {2, 3, 5, 7});
  const Tensor output = Tensor::empty({2, 1}, DType::kF32);
  reduce_permuted_rows(rows, row_of_slot, weights, output, {});
  EXPECT_EQ(floats(output), (std::vector<float>{2003, 700}));
  reduce_permuted_rows(rows, row_of_slot, {}, output, {});
  EXPECT_EQ(floats(output), (std::vector<float>{1001, 100}));
}

TEST(ReducePermutedRows, RefusesRowsThatThereAreNot) {
  const auto rows = filled({4, 1}, DType::kF32, {1, 10, 100, 1000});
  const auto output = filled({1, 1}, DType::kF32, {5});
  for (const int32_t row : {4, 7, -2}) {
    expect_error({"row_of_slot[0, 1] is " + std::to_string(row) + ", expected -1 or [0, 4)"}, [&] {
      reduce_permuted_rows(rows, ids_of({1, 2}, {3, row}), {}, output, {});
    });
  }
  EXPECT_EQ(floats(output), std::vector<float>{5});
}

}  // namespace
}  // namespace moebius::testing
