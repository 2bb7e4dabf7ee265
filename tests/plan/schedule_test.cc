// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Schedules that were worked out by hand.  a..b is the time from a to b.
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
  const MicrobatchTimes longer = part(1, 10, 12, 20, 8, 2);  // than the transfer
  EXPECT_DOUBLE_EQ(run_schedule({&longer, 1}, 7).total, 1 + 12 + 20 + 8 + 2);
}

// Rows travel there 1..11 and experts compute until 19.  The first quarter of the last GEMM takes
// 19..22, is summed until 23 and goes back 23..25.  The other quarters take half as long again: the
// second is computed until 27.5, summed until 28.5 and back at 30.5; the third until 33, 34 and 36;
// the last until 38.5, 39.5 and 41.5.
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
  p.back_start = 4;  // of the 8, so that every part takes 4 + 1
  EXPECT_DOUBLE_EQ(run_schedule({&p, 1}, 7).total, 39.5 + 5 + 2);
}

// A is sent at 1 and travels there 1..11; B is sent at 2 and travels 11..21.  A computes 11..31 and
// travels back 31..39.  B, whose rows have arrived, computes 31..51 and travels back 51..59.  A
// receives 51..53.  B waits until 59 and receives until 61.
TEST(Schedule, TwoPartsHideEachOthersRows) {
  const std::vector<MicrobatchTimes> parts(2, part(1, 10, 0, 20, 8, 2));
  const Timeline line = run_schedule(parts, 7);
  EXPECT_DOUBLE_EQ(line.total, 61);
  EXPECT_DOUBLE_EQ(line.travelled, 36);
  EXPECT_DOUBLE_EQ(line.waited, 9 + 6);
  EXPECT_DOUBLE_EQ(line.hidden, 10 + 8);  // B's rows there after 11, A's rows back
}

// As above, but of the 20 A and B spend 5 before experts and 3 after them: A unpacks 11..16,
// computes experts 16..28 and sums until 31.  B travels there 11..21, of which 5 are hidden.  A
// travels back 31..39 while B unpacks 31..36 and computes experts 36..48, so that 3 are hidden.
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

// A, B and C are sent at 1, 2, 3 and arrive at 11, 21, 31.  They compute 11..16, 21..26 and 31..36,
// since the link is the limit.  A travels back 31..39 (behind C's rows), B 39..47 and C 47..55.
// They receive 39..41, 47..49 and 55..57.
TEST(Schedule, ThreePartsQueueOnTheLink) {
  const std::vector<MicrobatchTimes> parts(3, part(1, 10, 0, 5, 8, 2));
  const Timeline line = run_schedule(parts, 7);
  EXPECT_DOUBLE_EQ(line.total, 57);
  EXPECT_DOUBLE_EQ(line.travelled, 54);
  EXPECT_DOUBLE_EQ(line.waited, 8 + 5 + 5 + 3 + 6 + 6);
}

// With two in flight the third begins when the first has ended.  A arrives at 11 and B at 21.  A
// computes 11..16 and travels back 21..29; B computes 21..26 and travels back 29..37.  A receives
// 29..31, and C is prepared until 32 and travels there 37..47.  B receives 37..39.  C computes
// 47..52, travels back 52..60 and receives until 62.
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
