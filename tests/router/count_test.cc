// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "moebius/error.h"
#include "moebius/router.h"
#include "problems/place.h"
#include "tests/error_text.h"
#include "tests/on_devices.h"

namespace moebius {
namespace {

using Ids = std::vector<int32_t>;

using testing::cpu_and_cuda;
using testing::device_name;
using testing::OnDevices;
using testing::Place;

Ids count(const Place& place, Ids ids, int64_t topk, Ids map, int64_t num_local_experts) {
  Ids counts(static_cast<size_t>(num_local_experts), -5);
  const auto num_tokens = static_cast<int64_t>(ids.size()) / topk;
  const Tensor map_tensor =
      map.empty() ? Tensor()
                  : Tensor::borrow(map.data(), {static_cast<int64_t>(map.size())}, DType::kI32);
  const Tensor ids_there = place.take(Tensor::borrow(ids.data(), {num_tokens, topk}, DType::kI32));
  const Tensor map_there = place.take(map_tensor);
  const Tensor host_counts = Tensor::borrow(counts.data(), {num_local_experts}, DType::kI32);
  const Tensor counts_there = place.take(host_counts);
  count_expert_tokens(ids_there, map_there, counts_there, place.stream);
  const Tensor back = place.bring(counts_there);
  const Tensor wide =
      place.take(convert(Tensor::borrow(ids.data(), {num_tokens, topk}, DType::kI32), DType::kI64));
  const Tensor wide_counts = place.take(host_counts.clone());
  count_expert_tokens(wide, map_there, wide_counts, place.stream);
  const Tensor same = place.bring(wide_counts);
  EXPECT_TRUE(std::equal(back.data<int32_t>(), back.data<int32_t>() + num_local_experts,
                         same.data<int32_t>()));
  return {back.data<int32_t>(), back.data<int32_t>() + num_local_experts};
}

// The cases run on the CPU and on a GPU.
class CountExpertTokens : public OnDevices {};

INSTANTIATE_TEST_SUITE_P(Devices, CountExpertTokens, cpu_and_cuda(), device_name);

// Local expert l of rank r is global expert order[r * L + l], so each (token, expert) must be
// counted on exactly one rank.
void check_all_ranks(const Place& place,
                     int64_t num_tokens,
                     int64_t topk,
                     int64_t num_experts,
                     int64_t ep_size,
                     std::mt19937& random) {
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
    ASSERT_EQ(count(place, ids, topk, map, num_local), expected)
        << "T " << num_tokens << " K " << topk << " rank " << rank << " of " << ep_size;
  }
}

TEST_P(CountExpertTokens, MatchesForEveryRankOfAnExpertMap) {
  std::mt19937 random(1);
  for (const int64_t num_tokens : {0, 1, 4, 7, 33, 222, 1024, 1111, 7317}) {
    for (const int64_t topk : {2, 6, 8}) {
      for (const int64_t ep_size : {1, 2, 4}) {
        check_all_ranks(place_, num_tokens, topk, 64, ep_size, random);
      }
    }
  }
}

TEST_P(CountExpertTokens, MatchesForEverySizeUpTo8192) {
  std::mt19937 random(2);
  for (int64_t num_ids = 1; num_ids < 8192; num_ids += 11) {
    check_all_ranks(place_, num_ids, 1, 16, 2, random);
  }
}

TEST_P(CountExpertTokens, WithoutAMapIdsAreLocal) {
  EXPECT_EQ(count(place_, {0, 2, 2, -1, 2, 0}, 2, {}, 4), (Ids{2, 0, 3, 0}));
}

TEST_P(CountExpertTokens, ManyExpertsAreCountedToo) {
  std::mt19937 random(3);
  check_all_ranks(place_, 5000, 2, 9001, 1, random);
}

TEST_P(CountExpertTokens, NoTokensGiveZeros) {
  EXPECT_EQ(count(place_, {}, 3, {}, 3), (Ids{0, 0, 0}));
}

std::string refusal(const Ids& ids, const Ids& map, int64_t num_local_experts) {
  return testing::message_of([&] { count({}, ids, 2, map, num_local_experts); });
}

TEST(CountExpertTokensOnCpu, IdsOutOfRangeAreNamed) {
  EXPECT_EQ(refusal({0, 1, 4, 0}, {}, 4), "ids[1, 0] is 4, expected -1 <= id < 4");
  EXPECT_EQ(refusal({0, 1, 3, -2}, {}, 4), "ids[1, 1] is -2, expected -1 <= id < 4");
  EXPECT_EQ(refusal({0, 1, 4, 5}, {0, -1, -1, 1, -1}, 2), "ids[1, 1] is 5, expected -1 <= id < 5");
  EXPECT_EQ(refusal({0, 1}, {0, 2}, 2), "expert_map[1] is 2, expected -1 <= id < 2");
}

TEST(CountExpertTokensOnGpu, IdsOutOfRangeAreNotCounted) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "skipped: no GPU";
  }
  const Place gpu(DeviceType::kCuda);
  EXPECT_EQ(count(gpu, {0, 1, 4, -2}, 2, {}, 4), (Ids{1, 1, 0, 0}));
  EXPECT_EQ(count(gpu, {0, 1, 9, 2}, 2, {0, 7, 1}, 2), (Ids{1, 1}));
}

TEST(CountExpertTokensOnCpu, ARefusedCallLeavesTheOutputAlone) {
  Ids ids = {0, 9}, counts = {5, 6};
  EXPECT_THROW(count_expert_tokens(Tensor::borrow(ids.data(), {1, 2}, DType::kI32), {},
                                   Tensor::borrow(counts.data(), {2}, DType::kI32), {}),
               InvalidArgument);
  EXPECT_EQ(counts, (Ids{5, 6}));
}

}  // namespace
}  // namespace moebius
