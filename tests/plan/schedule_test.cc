// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Schedules worked out by hand.
#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace moebius::plan {
namespace {

MicrobatchTimes part(
    double prepare, double there, double shared, double experts, double back, double end) {
  return {.prepare = prepare,
          .there = there,
          .shared = shared,
          .experts = experts,
          .back = back,
          .receive = end};
}

TEST(Schedule, OnePartWaitsForItsRows) {
  const MicrobatchTimes p = part(1, 10, 0, 20, 8, 2);
  const Timeline line = run_schedule({&p, 1}, 7);
  EXPECT_DOUBLE_EQ(line.total, 41);
  EXPECT_DOUBLE_EQ(line.travelled, 18);
  EXPECT_DOUBLE_EQ(line.waited, 18);
  EXPECT_DOUBLE_EQ(line.hidden_share(), 0);
}

TEST(Schedule, SharedExpertsAreComputedWhileRowsTravel) {
  const MicrobatchTimes early = part(1, 10, 4, 20, 8, 2);
  EXPECT_DOUBLE_EQ(run_schedule({&early, 1}, 7).waited, 6 + 8);
  EXPECT_DOUBLE_EQ(run_schedule({&early, 1}, 7).total, 41);
  EXPECT_DOUBLE_EQ(run_schedule({&early, 1}, 7).hidden, 4);
  MicrobatchTimes late = early;
  late.shares_early = false;
  EXPECT_DOUBLE_EQ(run_schedule({&late, 1}, 7).waited, 10 + 4);
  const MicrobatchTimes longer = part(1, 10, 12, 20, 8, 2);  // than the rows travel
  EXPECT_DOUBLE_EQ(run_schedule({&longer, 1}, 7).total, 1 + 12 + 20 + 8 + 2);
}

// There 1..11, experts until 19, then a quarter of the last GEMM 19..22, summed until 23,
// back 23..25; the next quarters take half as long again: 23..27.5, summed ..28.5, back ..30.5; 33,
// 34, 36; 38.5, 39.5, 41.5.
TEST(Schedule, RowsGoBackInParts) {
  MicrobatchTimes p = part(1, 10, 0, 20, 8, 2);
  p.after_experts = 4;
  p.parts_back = 4;
  p.last_gemm = 12;
  p.beside = 1.5;
  const Timeline line = run_schedule({&p, 1}, 7);
  EXPECT_DOUBLE_EQ(line.total, 43.5);
  EXPECT_DOUBLE_EQ(line.travelled, 18);
  EXPECT_DOUBLE_EQ(line.waited, 10 + 2);
  EXPECT_DOUBLE_EQ(line.hidden, 6);
  p.back_start = 4;  // of the 8: every part takes 4 + 1
  EXPECT_DOUBLE_EQ(run_schedule({&p, 1}, 7).total, 39.5 + 5 + 2);
}

// A: sent at 1, there 1..11.  B: sent at 2, there 11..21.  A computes 11..31, back 31..39.  B's
// rows are there; it computes 31..51, back 51..59.  A is back at 39, receives 51..53.  B waits
// until 59, receives until 61.
TEST(Schedule, TwoPartsHideEachOthersRows) {
  const std::vector<MicrobatchTimes> parts(2, part(1, 10, 0, 20, 8, 2));
  const Timeline line = run_schedule(parts, 7);
  EXPECT_DOUBLE_EQ(line.total, 61);
  EXPECT_DOUBLE_EQ(line.travelled, 36);
  EXPECT_DOUBLE_EQ(line.waited, 9 + 6);
  EXPECT_DOUBLE_EQ(line.hidden, 10 + 8);  // B's rows there but 1..2 and 2..11, A's rows back
}

// As above, but A and B spend 5 of the 20 before experts, 3 after: A 11..16, experts 16..28, ..31.
// B there 11..21: 5 hidden.  A back 31..39 beside B: 31..36 unpacked, experts 36..48: 3 hidden.
TEST(Schedule, OnlyExpertsHide) {
  std::vector<MicrobatchTimes> parts(2, part(1, 10, 0, 12, 8, 2));
  for (MicrobatchTimes& p : parts) {
    p.before_experts = 5;
    p.after_experts = 3;
  }
  const Timeline line = run_schedule(parts, 7);
  EXPECT_DOUBLE_EQ(line.total, 61);
  EXPECT_DOUBLE_EQ(line.travelled, 36);
  EXPECT_DOUBLE_EQ(line.waited, 9 + 6);
  EXPECT_DOUBLE_EQ(line.hidden, 5 + 3);
  EXPECT_DOUBLE_EQ(line.hidden_share(), 8.0 / 36);
}

// Sends at 1, 2, 3; there at 11, 21, 31.  Computes A 11..16, B 21..26, C 31..36: the link limits.
// Back: A 31..39 (behind C's rows), B 39..47, C 47..55.  A receives 39..41, B 47..49, C 55..57.
TEST(Schedule, ThreePartsQueueOnTheLink) {
  const std::vector<MicrobatchTimes> parts(3, part(1, 10, 0, 5, 8, 2));
  const Timeline line = run_schedule(parts, 7);
  EXPECT_DOUBLE_EQ(line.total, 57);
  EXPECT_DOUBLE_EQ(line.travelled, 54);
  EXPECT_DOUBLE_EQ(line.waited, 8 + 5 + 5 + 3 + 6 + 6);
}

// With two in flight the third begins where the first has ended: A 1..11, B there 21; A computes
// 11..16, back 21..29; B computes 21..26, back 29..37; A receives 29..31, and C is prepared until
// 32 and there 37..47; B receives 37..39; C computes 47..52, back 52..60, receives until 62.
TEST(Schedule, TwoInFlightGoInPairs) {
  const std::vector<MicrobatchTimes> parts(3, part(1, 10, 0, 5, 8, 2));
  EXPECT_DOUBLE_EQ(run_schedule(parts, 2).total, 62);
}

TEST(Schedule, NeverBelowEitherResourceNorAboveTheirSum) {
  for (int count = 1; count <= 9; ++count) {
    for (const double there : {0.0, 3.0, 40.0}) {
      const std::vector<MicrobatchTimes> parts(static_cast<size_t>(count),
                                               part(1, there, 2, 7, 5, 1));
      for (const int in_flight : {1, 2, 7}) {
        const Timeline line = run_schedule(parts, in_flight);
        EXPECT_GE(line.total, 11 * count);
        EXPECT_GE(line.total, line.travelled);
        EXPECT_LE(line.total, 11 * count + line.travelled);
        EXPECT_NEAR(line.total, 11 * count + line.waited, 1e-9);
        EXPECT_LE(line.hidden + line.waited, line.travelled + 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace moebius::plan
