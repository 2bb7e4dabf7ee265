// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the words that GPUs exchange say, as far as no GPU is needed.
#include "comm/cuda/signals.h"

#include <gtest/gtest.h>

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

TEST(Signals, FaultsSurviveTheirWord) {
  const Fault fault{FaultReason::kExpired, SignalOp::kCombine, 3, 63, 0x80000001};
  EXPECT_EQ(unpack_fault(pack_fault(fault)), fault);
  EXPECT_NE(pack_fault({FaultReason::kExpired, SignalOp::kNone, 0, 0, 0}), 0u);
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
  EXPECT_STREQ(
      make_comm_error(1, pack_fault({FaultReason::kStopped, SignalOp::kCombine, 2, 2, 8}), 0, 300)
          .what(),
      "rank 1: combine, call 8: rank 2 failed");
  EXPECT_STREQ(make_comm_error(
                   2, pack_fault({FaultReason::kOverflow, SignalOp::kDispatch, 2, 1, 8}), 77, 300)
                   .what(),
               "rank 2: dispatch, call 8: rank 1 has more rows than there is room for: 77");
}

}  // namespace
}  // namespace moebius::comm
