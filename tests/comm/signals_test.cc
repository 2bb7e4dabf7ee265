// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The words that GPUs exchange, and the errors they become, as far as no GPU is needed.
#include "comm/device/signals.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "moebius/error.h"

namespace moebius::comm {
namespace {

TEST(Signals, EpochAndValueShareAWord) {
  const uint64_t signal = make_signal(7, 0xfffffffe);
  EXPECT_EQ(signal_epoch(signal), 7u);
  EXPECT_EQ(signal_value(signal), 0xfffffffeu);
}

TEST(Signals, EpochsMayWrap) {
  EXPECT_TRUE(has_reached(5, 5));
  EXPECT_TRUE(has_reached(6, 5));
  EXPECT_FALSE(has_reached(4, 5));
  EXPECT_TRUE(has_reached(1, 0xffffffff));
  EXPECT_FALSE(has_reached(0xffffffff, 1));
}

// Words of calls that are over, however long ago, and of new windows do not count for later calls.
TEST(Signals, OldWordsAreNotOfCallsToCome) {
  for (const uint32_t epoch : {1u, 2u, 7u, 0x7fffffffu, 0x80000000u, 0xfffffffcu, 0xffffffffu}) {
    for (const uint32_t ahead : {0u, 1u, 2u, kMostAhead}) {
      EXPECT_TRUE(has_just_reached(epoch + ahead, epoch)) << epoch;
    }
    for (const uint32_t age :
         {1u, 2u, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffffffu - kMostAhead}) {
      EXPECT_FALSE(has_just_reached(epoch - age, epoch)) << epoch << ", " << age << " calls ago";
    }
  }
  EXPECT_FALSE(has_just_reached(0, 0x80000001u));  // a new window
}

TEST(Signals, FaultsSurviveTheirWord) {
  for (const uint8_t guilty : {uint8_t{63}, uint8_t{kMaxCudaRanks - 1}}) {
    const Fault fault{FaultReason::kExpired, SignalOp::kCombine, 3, guilty, 0x80000001};
    EXPECT_EQ(unpack_fault(pack_fault(fault)), fault);
  }
  EXPECT_NE(pack_fault({FaultReason::kExpired, SignalOp::kNone, 0, 0, 0}), 0u);
}

TEST(Signals, WhatARankGivenUpHasFoundIsNoFault) {
  const auto fault = [](uint8_t author, uint8_t guilty) {
    return pack_fault({FaultReason::kExpired, SignalOp::kLowLatencyCombine, author, guilty, 9});
  };
  const auto only = [](auto... ranks) {
    RankMask mask{};
    (mask.add(ranks), ...);
    return mask;
  };
  EXPECT_FALSE(is_from_dead(0, only(0, 63, 64, kMaxCudaRanks - 1)));
  EXPECT_FALSE(is_from_dead(fault(0, 63), only(63)));
  EXPECT_TRUE(is_from_dead(fault(63, 0), only(63)));
  EXPECT_TRUE(is_from_dead(fault(0, 63), only(0, 5)));
  EXPECT_TRUE(may_go_on(0, RankMask{}));
  EXPECT_FALSE(may_go_on(fault(1, 2), RankMask{}));
  EXPECT_FALSE(may_go_on(fault(1, 2), only(0, 3)));
  EXPECT_TRUE(may_go_on(fault(1, 2), only(2)));  // found by a live rank about the dead
  EXPECT_TRUE(may_go_on(fault(2, 1), only(2)));  // found by the dead about a live rank
  EXPECT_TRUE(may_go_on(fault(63, 63), only(63)));
  EXPECT_TRUE(is_from_dead(fault(159, 0), only(159)));
  EXPECT_FALSE(is_from_dead(fault(159, 0), only(31, 95)));  // the same bit of other words
}

template <int kWords>
void expect_like_a_set() {
  using Mask = RankMaskOf<kWords>;
  std::set<int> ranks;
  Mask mask{};
  EXPECT_TRUE(mask.is_empty());
  for (const int rank : {0, 31, 32, 63, 64, 127, 128, 159}) {
    if (rank < Mask::kMaxRanks) {
      ranks.insert(rank);
      mask.add(rank);
    }
  }
  EXPECT_FALSE(mask.is_empty());
  for (int rank = 0; rank < Mask::kMaxRanks; ++rank) {
    EXPECT_EQ(mask.has(rank), ranks.count(rank) == 1) << rank;
    EXPECT_EQ(mask.has(rank / 32, rank % 32), ranks.count(rank) == 1) << rank;
  }
  RankMask others{};
  others.add(31);
  others.add(kMaxCudaRanks - 1);
  mask.remove(others);
  EXPECT_FALSE(mask.has(31));
  EXPECT_FALSE(mask.has(Mask::kMaxRanks - 1) && kWords > 1);
  EXPECT_TRUE(mask.has(0));
}

TEST(RankMask, IsASetOfRanks) {
  expect_like_a_set<1>();
  expect_like_a_set<kWideWords>();
  EXPECT_EQ(rank_mask_words(1), 1);
  EXPECT_EQ(rank_mask_words(64), 1);
  EXPECT_EQ(rank_mask_words(65), kWideWords);
  EXPECT_EQ(RankMaskOf<1>::kGroups, 2);
  EXPECT_EQ(RankMask::kGroups, 5);
}

TEST(Signals, ErrorsNameWhoIsMissing) {
  const uint64_t word = pack_fault({FaultReason::kExpired, SignalOp::kDispatchCounts, 0, 2, 5});
  const CommError own = make_comm_error(0, word, make_signal(4, 9), 300);
  EXPECT_STREQ(own.what(),
               "rank 0: dispatch counts, call 5: rank 2 did not come within 300 ms, expected at "
               "call 5; it is at call 4");
  EXPECT_EQ(own.rank(), 0);
  EXPECT_EQ(own.peer(), 2);
  const CommError told = make_comm_error(1, word, 0, 300);
  EXPECT_STREQ(told.what(),
               "rank 1: dispatch counts, call 5: rank 2 did not come within 300 ms, expected at "
               "call 5 (found by rank 0)");
  EXPECT_EQ(told.rank(), 1);
  EXPECT_EQ(told.peer(), 2);
  EXPECT_STREQ(make_comm_error(0, word, 0, 300).what(),
               "rank 0: dispatch counts, call 5: rank 2 did not come within 300 ms, expected at "
               "call 5; it has not come yet");
}

TEST(Signals, ErrorsOfOtherReasons) {
  const auto text = [](int rank, const Fault& fault, uint64_t seen) {
    return std::string(make_comm_error(rank, pack_fault(fault), seen, 300).what());
  };
  constexpr auto kOp = SignalOp::kDispatch;
  EXPECT_EQ(text(1, {FaultReason::kStopped, SignalOp::kCombine, 2, 2, 8}, 0),
            "rank 1: combine, call 8: rank 2 failed");
  EXPECT_EQ(
      text(2, {FaultReason::kOverflow, kOp, 2, 1, 8}, make_signal(77, 64)),
      "rank 2: dispatch, call 8: rank 1 has no room for all its rows: 77, expected at most 64");
  EXPECT_EQ(text(2, {FaultReason::kMismatch, kOp, 2, 1, 8}, make_signal(40, 80)),
            "rank 2: dispatch, call 8: rank 1 moves rows of another size: 40 bytes, rank 2 of 80");
  EXPECT_EQ(text(2, {FaultReason::kScalesMismatch, kOp, 2, 1, 8}, make_signal(32, 0)),
            "rank 2: dispatch, call 8: rows of rank 1 have scales of another size: 32 bytes, those "
            "of rank 2 0");
  EXPECT_EQ(text(1, {FaultReason::kBadId, kOp, 1, 1, 8}, make_signal(3, static_cast<uint32_t>(-2))),
            "rank 1: dispatch, call 8: rank 1 has an expert id that is none: -2 of token 3");
  EXPECT_EQ(text(0, {FaultReason::kBadId, kOp, 1, 1, 8}, 0),
            "rank 0: dispatch, call 8: rank 1 has an expert id that is none");
  EXPECT_EQ(
      text(1, {FaultReason::kNoRoom, kOp, 1, 1, 8}, make_signal(70'000, make_pair(65'534, 128))),
      "rank 1: dispatch, call 8: tokens of rank 1 name expert 70000 65534 times, expected at "
      "most 128 (max_tokens)");
  EXPECT_EQ(text(0, {FaultReason::kNoRoom, kOp, 1, 1, 8}, 0),
            "rank 0: dispatch, call 8: tokens of rank 1 name an expert too often");
}

}  // namespace
}  // namespace moebius::comm
