// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "moebius/error.h"
#include "moebius/router.h"

namespace moebius {
namespace {

using Ids = std::vector<int32_t>;

Ids count(Ids ids, int64_t topk, Ids map, int64_t num_local_experts) {
  Ids counts(static_cast<size_t>(num_local_experts), -5);
  const auto num_tokens = static_cast<int64_t>(ids.size()) / topk;
  const Tensor map_tensor =
      map.empty() ? Tensor()
                  : Tensor::borrow(map.data(), {static_cast<int64_t>(map.size())}, DType::kI32);
  count_expert_tokens(Tensor::borrow(ids.data(), {num_tokens, topk}, DType::kI32), map_tensor,
                      Tensor::borrow(counts.data(), {num_local_experts}, DType::kI32), {});
  return counts;
}

// Local expert l of rank r is global expert order[r * L + l]; every (token, expert) is counted on
// exactly one rank.
void check_all_ranks(
    int64_t num_tokens, int64_t topk, int64_t num_experts, int64_t ep_size, std::mt19937& random) {
  std::uniform_int_distribution<int32_t> any_id(-1, static_cast<int32_t>(num_experts) - 1);
  Ids ids(static_cast<size_t>(num_tokens * topk)), order(static_cast<size_t>(num_experts));
  std::generate(ids.begin(), ids.end(), [&] { return any_id(random); });
  for (size_t e = 0; e < order.size(); ++e) {
    order[e] = static_cast<int32_t>(e);
  }
  std::shuffle(order.begin(), order.end(), random);
  const int64_t num_local = num_experts / ep_size;
  for (int64_t rank = 0; rank < ep_size; ++rank) {
    Ids map(order.size(), -1), expected;
    for (int64_t l = 0; l < num_local; ++l) {
      const int32_t global = order[static_cast<size_t>(rank * num_local + l)];
      map[static_cast<size_t>(global)] = static_cast<int32_t>(l);
      expected.push_back(static_cast<int32_t>(std::count(ids.begin(), ids.end(), global)));
    }
    ASSERT_EQ(count(ids, topk, map, num_local), expected)
        << "T " << num_tokens << " K " << topk << " rank " << rank << " of " << ep_size;
  }
}

TEST(CountExpertTokens, MatchesForEveryRankOfAnExpertMap) {
  std::mt19937 random(1);
  for (const int64_t num_tokens : {0, 1, 4, 7, 33, 222, 1024, 1111, 7317}) {
    for (const int64_t topk : {2, 6, 8}) {
      for (const int64_t ep_size : {1, 2, 4}) {
        check_all_ranks(num_tokens, topk, 64, ep_size, random);
      }
    }
  }
}

TEST(CountExpertTokens, MatchesForEverySizeUpTo8192) {
  std::mt19937 random(2);
  for (int64_t num_ids = 1; num_ids < 8192; num_ids += 11) {
    check_all_ranks(num_ids, 1, 16, 2, random);
  }
}

TEST(CountExpertTokens, WithoutAMapIdsAreLocal) {
  EXPECT_EQ(count({0, 2, 2, -1, 2, 0}, 2, {}, 4), (Ids{2, 0, 3, 0}));
}

TEST(CountExpertTokens, NoTokensGiveZeros) {
  EXPECT_EQ(count({}, 3, {}, 3), (Ids{0, 0, 0}));
}

std::string refusal(const Ids& ids, const Ids& map, int64_t num_local_experts) {
  try {
    count(ids, 2, map, num_local_experts);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CountExpertTokens, IdsOutOfRangeAreNamed) {
  EXPECT_EQ(refusal({0, 1, 4, 0}, {}, 4), "ids[1, 0] is 4, expected -1 <= id < 4");
  EXPECT_EQ(refusal({0, 1, 3, -2}, {}, 4), "ids[1, 1] is -2, expected -1 <= id < 4");
  EXPECT_EQ(refusal({0, 1, 4, 5}, {0, -1, -1, 1, -1}, 2), "ids[1, 1] is 5, expected -1 <= id < 5");
  EXPECT_EQ(refusal({0, 1}, {0, 2}, 2), "expert_map[1] is 2, expected -1 <= id < 2");
}

TEST(CountExpertTokens, ARefusedCallLeavesTheOutputAlone) {
  Ids ids = {0, 9}, counts = {5, 6};
  EXPECT_THROW(count_expert_tokens(Tensor::borrow(ids.data(), {1, 2}, DType::kI32), {},
                                   Tensor::borrow(counts.data(), {2}, DType::kI32), {}),
               InvalidArgument);
  EXPECT_EQ(counts, (Ids{5, 6}));
}

}  // namespace
}  // namespace moebius
