// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/permute.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/error_text.h"

namespace moebius {
namespace {

using Ints = std::vector<int32_t>;

Tensor borrow(Ints& values, const Shape& shape) {
  return Tensor::borrow(values.data(), shape, DType::kI32);
}

struct Order {
  Ints offsets;
  Ints rows;
  RowOrder order;

  Order(int64_t num_local_experts, int64_t num_slots)
      : offsets(static_cast<size_t>(num_local_experts + 1), -7),
        rows(static_cast<size_t>(num_slots), -7) {
    order.expert_offsets = offsets.data();
    order.output_rows = rows.data();
  }
};

Order sorted(
    Ints ids, int64_t topk, int64_t num_experts, int64_t num_local_experts, Ints map = {}) {
  Order result(num_local_experts, static_cast<int64_t>(ids.size()));
  const Tensor map_tensor = map.empty() ? Tensor{} : borrow(map, {num_experts});
  order_selections(borrow(ids, {static_cast<int64_t>(ids.size()) / topk, topk}), map_tensor,
                   num_experts, num_local_experts, result.order);
  return result;
}

std::string refusal_of(
    Ints ids, int64_t topk, int64_t num_experts, int64_t num_local_experts, Ints map = {}) {
  return testing::message_of(
      [&] { sorted(std::move(ids), topk, num_experts, num_local_experts, std::move(map)); });
}

TEST(Permute, RowsOfAnExpertAreInTokenAndSlotOrder) {
  const Order result = sorted({2, 0, 0, 2, 2, 1, 0, 0}, 2, 3, 3);
  EXPECT_EQ(result.offsets, (Ints{0, 4, 5, 8}));
  EXPECT_EQ(result.rows, (Ints{1, 2, 6, 7, 5, 0, 3, 4}));
  EXPECT_EQ(result.order.num_rows, 8);
  EXPECT_EQ(result.order.input_row(0), 0);
  EXPECT_EQ(result.order.input_row(3), 3);
  EXPECT_EQ(result.order.rows_of(2), 3);
}

TEST(Permute, MaskedAndForeignSelectionsComeLast) {
  // Expert 3 is local 0 and expert 1 is local 1.
  const Order result = sorted({3, -1, 0, 1, 2, 3, -1, 1}, 2, 4, 2, {-1, 1, -1, 0});
  EXPECT_EQ(result.offsets, (Ints{0, 2, 4}));
  EXPECT_EQ(result.rows, (Ints{0, 5, 3, 7, 1, 2, 4, 6}));
  EXPECT_EQ(result.order.num_rows, 4);
  EXPECT_EQ(result.order.num_slots, 8);
}

TEST(Permute, NothingToDo) {
  EXPECT_EQ(sorted({}, 2, 3, 3).offsets, (Ints{0, 0, 0, 0}));
  const Order masked = sorted({-1, -1}, 1, 2, 2);
  EXPECT_EQ(masked.offsets, (Ints{0, 0, 0}));
  EXPECT_EQ(masked.rows, (Ints{0, 1}));
}

TEST(Permute, EverySelectionAppearsOnce) {
  std::mt19937 random(3);
  Ints ids(500 * 7);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % 12) - 1;
  }
  const Order result = sorted(ids, 7, 11, 11);
  std::vector<bool> seen(ids.size());
  for (int64_t e = 0; e < 11; ++e) {
    for (auto r = static_cast<size_t>(result.offsets[static_cast<size_t>(e)]);
         r < static_cast<size_t>(result.offsets[static_cast<size_t>(e) + 1]); ++r) {
      const auto slot = static_cast<size_t>(result.rows[r]);
      EXPECT_EQ(ids[slot], e);
      EXPECT_FALSE(seen[slot]);
      seen[slot] = true;
      if (r > static_cast<size_t>(result.offsets[static_cast<size_t>(e)])) {
        EXPECT_LT(result.rows[r - 1], result.rows[r]);
      }
    }
  }
  for (auto r = static_cast<size_t>(result.order.num_rows); r < ids.size(); ++r) {
    EXPECT_EQ(ids[static_cast<size_t>(result.rows[r])], -1);
  }
}

TEST(Permute, IdsOutOfRangeNameTokenSlotAndBothValues) {
  EXPECT_EQ(refusal_of({0, 1, 2, 3, 4, 0}, 2, 4, 4),
            "topk_ids of token 2, slot 0 is 4, expected -1 or [0, 4)");
  EXPECT_EQ(refusal_of({0, 1, 2, -2}, 2, 4, 4),
            "topk_ids of token 1, slot 1 is -2, expected -1 or [0, 4)");
  // Without a map ids are local; with one they are global.
  EXPECT_EQ(refusal_of({3}, 1, 8, 2), "topk_ids of token 0, slot 0 is 3, expected -1 or [0, 2)");
  EXPECT_EQ(refusal_of({3}, 1, 4, 2, {0, 1, -1, -1}), "no error");
}

TEST(Permute, MapEntriesOutOfRangeNameTheExpert) {
  EXPECT_EQ(refusal_of({0}, 1, 3, 2, {0, 2, -1}), "expert_map[1] is 2, expected -1 or [0, 2)");
  EXPECT_EQ(refusal_of({0}, 1, 3, 2, {0, 1, -5}), "expert_map[2] is -5, expected -1 or [0, 2)");
}

TEST(Permute, BatchedRowsKeepTheirPlaces) {
  Ints counts = {2, 0, 3};
  Order result(3, 9);
  order_batched(borrow(counts, {3}), 3, result.order);
  EXPECT_EQ(result.offsets, (Ints{0, 2, 2, 5}));
  EXPECT_EQ(Ints(result.rows.begin(), result.rows.begin() + 5), (Ints{0, 1, 6, 7, 8}));
  EXPECT_EQ(result.order.num_rows, 5);
  EXPECT_EQ(result.order.input_row(4), 8);

  counts = {2, 4, 3};
  EXPECT_EQ(testing::message_of([&] { order_batched(borrow(counts, {3}), 3, result.order); }),
            "expert_num_tokens[1] is 4, expected [0, 3]");
}

}  // namespace
}  // namespace moebius
