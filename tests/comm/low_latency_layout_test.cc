// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The words and the layouts of low latency on GPUs, which can be tested without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "comm/low_latency/cuda/kernels.h"
#include "comm/low_latency/cuda/window_layout.h"

namespace moebius::comm {
namespace {

struct Case {
  int64_t max_tokens, topk, hidden, element_bytes;
  int num_ranks;
  int64_t num_local;
};
const std::vector<Case> kCases = {
    {128, 8, 7168, 2, 8, 32}, {1, 1, 1, 2, 1, 1},       {7, 3, 45, 2, 3, 5},
    {64, 32, 1025, 4, 5, 40}, {128, 8, 2880, 2, 4, 32}, {3, 2, 640, 4, 64, 1},
    {2, 8, 256, 2, 65, 2},    {1, 4, 128, 2, 160, 3},
};

CudaLowLatencyLayout layout_of(const Case& c) {
  return CudaLowLatencyLayout::make(c.max_tokens, c.topk, c.hidden, c.element_bytes, c.num_ranks,
                                    c.num_local);
}

TEST(LowLatencyCudaLayout, NothingOverlapsAndAllOfItIsInside) {
  for (const Case& c : kCases) {
    const CudaLowLatencyLayout l = layout_of(c);
    std::vector<std::pair<int64_t, int64_t>> blocks;  // begin, bytes
    for (int bank = 0; bank < 2; ++bank) {
      for (int s = 0; s < c.num_ranks; ++s) {
        for (int64_t i = 0; i < c.max_tokens; ++i) {
          blocks.emplace_back(l.message_at(bank, s, i), l.message_bytes);
          for (int w = 0; w < c.topk + 2; ++w) {
            blocks.emplace_back(l.header_at(bank, s, i, w), 8);
          }
          for (int part = 0; part < l.num_parts; ++part) {
            blocks.emplace_back(l.row_flag_at(bank, s, i, part), 8);
          }
        }
        for (int64_t local = 0; local < c.num_local; ++local) {
          blocks.emplace_back(l.count_at(bank, local, s), 8);
        }
        for (int64_t i = 0; i < c.max_tokens * c.topk; ++i) {
          blocks.emplace_back(l.weight_at(bank, s, i), 8);
        }
        blocks.emplace_back(l.num_messages_at(bank, s), 8);
        blocks.emplace_back(l.kind_at(bank, s, 0), 8);
        blocks.emplace_back(l.kind_at(bank, s, 1), 8);
        blocks.emplace_back(l.unpacked_at(bank, s), 8);
      }
      for (int64_t i = 0; i < c.max_tokens * c.topk; ++i) {
        blocks.emplace_back(l.returned_at(bank, i), l.returned_bytes);
        for (int part = 0; part < l.num_parts; ++part) {
          blocks.emplace_back(l.return_flag_at(bank, i, part), 8);
        }
      }
    }
    for (int s = 0; s < c.num_ranks; ++s) {
      blocks.emplace_back(l.resumed_at(s), 8);
      blocks.emplace_back(l.abort_at(s), 8);
      blocks.emplace_back(l.beat_at(s), 8);
    }
    std::sort(blocks.begin(), blocks.end());
    int64_t end = 0;
    for (const auto& [begin, bytes] : blocks) {
      ASSERT_GE(begin, end) << "hidden " << c.hidden;
      ASSERT_EQ(begin % 8, 0);
      end = begin + bytes;
    }
    ASSERT_LE(end, l.bytes());
  }
}

TEST(LowLatencyCudaLayout, RowsFitInEitherFormAndBeginAtWholeLines) {
  for (const Case& c : kCases) {
    const CudaLowLatencyLayout l = layout_of(c);
    EXPECT_GE(l.message_bytes, c.hidden * c.element_bytes);
    EXPECT_GE(l.message_bytes, c.hidden + 4 * (c.hidden / kCastGroup));
    EXPECT_GE(l.returned_bytes, c.hidden * c.element_bytes);
    EXPECT_GE(l.num_parts * kPartElements, c.hidden);
    EXPECT_LT((l.num_parts - 1) * kPartElements, c.hidden);
    EXPECT_EQ(l.message_at(1, c.num_ranks - 1, c.max_tokens - 1) % 16, 0);
    EXPECT_EQ(l.returned_at(1, c.max_tokens * c.topk - 1) % 16, 0);
  }
}

TEST(LowLatencyCudaLayout, MemoryOfADecodeBatchIsSmall) {
  // 128 tokens, top-8 of 256 experts over 8 ranks, hidden 7168: two banks of 8 x 128 messages of
  // 14336 bytes and as many returned rows, and their words.
  const int64_t rows = 2 * (8 * 128 + 128 * 8) * int64_t{14336};
  const int64_t bytes = layout_of(kCases[0]).bytes();
  EXPECT_GE(bytes, rows);
  EXPECT_LT(bytes, rows + rows / 50);
}

TEST(LowLatencyCudaLayout, SharedMemoryOfADispatchHasRoomForAll) {
  for (const Case& c : kCases) {
    const CudaLowLatencyLayout l = layout_of(c);
    const int64_t num_experts = c.num_local * c.num_ranks;
    const auto map = DispatchSharedMap::make(l, num_experts, c.num_local);
    EXPECT_GE(map.placement, 8 * c.max_tokens * rank_mask_words(c.num_ranks));
    EXPECT_GE(map.ids - map.placement, 4 * num_experts);
    EXPECT_GE(map.counts - map.ids, 4 * (c.max_tokens * c.topk + 3));
    EXPECT_GE(map.bases - map.counts, 4 * num_experts);
    EXPECT_GE(map.num_messages - map.bases, 4 * c.num_local * c.num_ranks);
    EXPECT_GE(map.bytes - map.num_messages, 4 * c.num_ranks);
    EXPECT_EQ(map.ids % 16, 0);  // read four at a time
  }
}

TEST(LowLatencyCudaDivisor, DividesAllThatIsNotNegative) {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (int d = 1; d <= 1100; ++d) {
    const Divisor divisor = Divisor::of(d);
    for (int n = 0; n < 4 * d; ++n) {
      ASSERT_EQ(divisor.quotient(n), n / d) << n << " / " << d;
    }
    for (int q = kMost / d; q > kMost / d - 1000; --q) {  // just below multiples of d, and at them
      ASSERT_EQ(divisor.quotient(q * d), q) << q << " * " << d;
      ASSERT_EQ(divisor.quotient(q * d - 1), q - 1) << q << " * " << d;
    }
    ASSERT_EQ(divisor.quotient(kMost), kMost / d) << d;
  }
  EXPECT_EQ(Divisor::of(kMost).quotient(kMost), 1);
  EXPECT_EQ(Divisor::of(kMost).quotient(kMost - 1), 0);
}

TEST(LowLatencyCudaWords, KeepBothHalves) {
  const uint32_t placed = make_pair(kMaxLocalIndex, 3);
  EXPECT_EQ(pair_first(placed), static_cast<uint32_t>(kMaxLocalIndex));
  EXPECT_EQ(pair_second(placed), 3u);
  EXPECT_NE(make_pair(kMaxLocalIndex, kMaxLocalIndex), kNotHere);
}

TEST(LowLatencyCudaWords, BanksTakeTurns) {
  EXPECT_NE(bank_of(1), bank_of(2));
  EXPECT_EQ(bank_of(1), bank_of(3));
  EXPECT_NE(bank_of(0xffffffff), bank_of(0));  // when the epoch wraps, too
}

TEST(LowLatencyCudaLayout, StagesOfCombineFitAndDoNotOverlap) {
  constexpr int64_t kBytes = 231424;
  for (const Case& c : kCases) {
    const int num_parts = layout_of(c).num_parts;
    const int most = CombineSharedMap::max_stage_parts(c.element_bytes, num_parts, kBytes);
    const auto map = CombineSharedMap::make(c.element_bytes, most);
    EXPECT_LE(map.bytes(), kBytes);
    EXPECT_GE(map.stage(1) - map.stage(0), most * kPartElements * c.element_bytes);
    EXPECT_GE(map.barrier(0), map.stage(kLowLatencySendWarps));
    EXPECT_EQ(map.stage(1) % 128, 0);
    EXPECT_EQ(map.barrier(0) % 8, 0);
    EXPECT_GE(map.barrier(1) - map.barrier(0), 8 * kCombineSlots);
    EXPECT_LE(max_unit_parts(most), num_parts);
    // One part more would not fit.
    EXPECT_TRUE(most == 2 * num_parts ||
                CombineSharedMap::make(c.element_bytes, most + 1).bytes() > kBytes);
  }
  EXPECT_EQ(CombineSharedMap::max_stage_parts(2, 7, kBytes), 7);  // hidden 7168, bf16
  EXPECT_EQ(CombineSharedMap::max_stage_parts(4, 7, kBytes), 3);  // f32
  EXPECT_EQ(CombineSharedMap::max_stage_parts(2, 3, kBytes), 6);
  EXPECT_EQ(max_unit_parts(7), 3);
  EXPECT_EQ(max_unit_parts(1), 1);
}

TEST(LowLatencyCudaLayout, UnitsOfCombineGiveAllWarpsWorkOnce) {
  constexpr int kWarps = 132 * kLowLatencySendWarps;
  EXPECT_EQ(choose_unit_parts(0, 7, kWarps, 7), 1);
  EXPECT_EQ(choose_unit_parts(8, 7, kWarps, 7), 1);
  EXPECT_EQ(choose_unit_parts(301, 7, kWarps, 7), 1);
  EXPECT_EQ(choose_unit_parts(302, 7, kWarps, 7), 2);
  EXPECT_EQ(choose_unit_parts(672, 7, kWarps, 7), 3);
  EXPECT_EQ(choose_unit_parts(1024, 7, 16, 7), 7);
  EXPECT_EQ(choose_unit_parts(int64_t{1} << 32, 7, 16, 5), 5);
}

TEST(LowLatencyCudaLayout, KindsThatDifferHaveOtherTags) {
  const LowLatencyKind kind{2 * 7168, 0, 128};
  const uint32_t tag = kind_tag(kind);
  for (uint32_t other = 1; other < 0x10000; ++other) {
    EXPECT_NE(kind_tag({2 * ((7168 + other) % 0x10000), 0, 128}), tag);
    EXPECT_NE(kind_tag({2 * 7168, other, 128}), tag);
    EXPECT_NE(kind_tag({2 * 7168, 0, (128 + other) % 0x10000}), tag);
  }
  for (uint32_t hidden = 128; hidden < 0x10000; hidden += 128) {
    for (const uint32_t element_bytes : {2u, 4u}) {
      EXPECT_NE(kind_tag({hidden, hidden / 32, 128}), kind_tag({hidden * element_bytes, 0, 128}))
          << "a cast of rows of " << hidden << " elements";
    }
  }
}

}  // namespace
}  // namespace moebius::comm
