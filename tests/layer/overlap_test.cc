// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests how much communication computing hides, with made-up intervals.
#include "layer/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace moebius {
namespace {

using std::chrono::milliseconds;
using Track = Profile::Track;

Profile::Interval interval(Track track, const std::string& name, int begin, int end) {
  const Profile::Clock::time_point origin{};
  return {name, track, 0, origin + milliseconds(begin), origin + milliseconds(end), 0};
}

Profile::Interval host(const std::string& name, int begin, int end) {
  return interval(Track::kHost, name, begin, end);
}
Profile::Interval flight(const std::string& name, int begin, int end) {
  return interval(Track::kInFlight, name, begin, end);
}

void expect_overlap(std::vector<Profile::Interval> intervals, int travel, int hidden, int waited) {
  for (int order = 0; order < 2; ++order) {
    const Overlap overlap = measure_overlap(intervals);
    EXPECT_EQ(overlap.travel, milliseconds(travel));
    EXPECT_EQ(overlap.hidden, milliseconds(hidden));
    EXPECT_EQ(overlap.waited, milliseconds(waited));
    EXPECT_EQ(overlap.hidden_share(), travel == 0 ? 0.0 : static_cast<double>(hidden) / travel);
    std::reverse(intervals.begin(), intervals.end());
  }
}

TEST(Overlap, OneMicrobatchHidesNothing) {
  expect_overlap({host("router", 0, 5), host("prepare", 5, 10), flight("dispatch", 8, 20),
                  host("wait", 12, 20), host("prepare", 11, 20), host("experts", 20, 50),
                  flight("combine", 50, 60), host("finalize", 50, 60), host("wait", 55, 60)},
                 22, 0, 13);
}

// Rows of B travel while A computes, and results of A travel while B computes.  The host waits at
// both ends.
TEST(Overlap, TwoMicrobatchesHideAllButTheEnds) {
  expect_overlap({flight("dispatch", 0, 10),                     // A
                  flight("dispatch", 2, 30),                     // B
                  host("wait", 4, 10), host("experts", 10, 30),  // A
                  flight("combine", 30, 50),                     // A
                  host("experts", 30, 50),                       // B
                  flight("combine", 50, 60),                     // B
                  host("wait", 52, 60)},
                 60, 40, 14);
}

TEST(Overlap, SharedExpertsHideTheRowsTheyAreComputedBeside) {
  expect_overlap({flight("dispatch", 0, 10), host("shared", 2, 8), host("wait", 8, 10),
                  host("experts", 10, 20)},
                 10, 6, 2);
}

TEST(Overlap, IntervalsThatOverlapCountOnce) {
  expect_overlap({flight("dispatch", 0, 10), flight("dispatch", 0, 10), flight("dispatch", 10, 12),
                  flight("combine", 3, 7), flight("combine", 20, 30), host("experts", 5, 25),
                  host("experts", 6, 9)},
                 22, 12, 0);
}

// There the host only enqueues.
TEST(Overlap, OnAGpuItsStreamsCompute) {
  expect_overlap(
      {flight("dispatch", 40, 55), host("experts", 0, 100),
       interval(Track::kTransfers, "prepare", 40, 55), interval(Track::kCompute, "prepare", 40, 44),
       interval(Track::kCompute, "experts", 50, 60), interval(Track::kShared, "shared", 45, 52)},
      15, 10, 0);
}

TEST(Overlap, WithoutTransfersThereIsNone) {
  expect_overlap({}, 0, 0, 0);
  expect_overlap({host("experts", 0, 10)}, 0, 0, 0);
}

}  // namespace
}  // namespace moebius
