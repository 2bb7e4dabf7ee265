// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/profile.h"

#include <gtest/gtest.h>

#include <chrono>

namespace moebius {
namespace {

using std::chrono::milliseconds;
using Track = Profile::Track;

TEST(Profile, CountsSpansPerStageInOrder) {
  Profile profile;
  for (int i = 0; i < 3; ++i) {
    const Profile::Span outer(&profile, "layer");
    const Profile::Span inner(&profile, "router");
  }
  const Profile::Span free_of_charge(nullptr, "none");
  ASSERT_EQ(profile.stages().size(), 2u);
  EXPECT_EQ(profile.stages()[0].name, "layer");
  EXPECT_EQ(profile.stages()[1].calls, 3);
  EXPECT_GE(profile.stages()[0].total, profile.stages()[1].total);
}

TEST(Profile, KeepsEachIntervalWithItsMicrobatchAndBytes) {
  Profile profile(Profile::Keep::kIntervals);
  const Stream stream = Stream::cpu(1);
  const auto now = Profile::Clock::now();
  profile.add_bytes(100);  // these belong to no span
  {
    const Profile::Span outer(&profile, "outer");
    profile.add_bytes(5);
    {
      const Profile::Span inner(&profile, "inner", stream, 3);
      profile.add_bytes(7);
      profile.add_wait(now, now + milliseconds(2));
    }
    profile.add_bytes(1);
  }
  const auto all = profile.intervals();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, Profile::kWait);
  EXPECT_EQ(all[0].microbatch, 3);
  EXPECT_EQ(all[0].end - all[0].begin, milliseconds(2));
  EXPECT_EQ(all[1].name, "inner");
  EXPECT_EQ(all[1].microbatch, 3);
  EXPECT_EQ(all[1].bytes, 7);
  EXPECT_EQ(all[2].name, "outer");
  EXPECT_EQ(all[2].microbatch, Profile::kAll);
  EXPECT_EQ(all[2].bytes, 6);  // without the bytes of the inner span
  EXPECT_EQ(profile.bytes(), 113);
  for (const auto& interval : all) {
    EXPECT_EQ(interval.track, Track::kHost);  // always so on the CPU
  }
  EXPECT_LE(all[2].begin, all[1].begin);
  EXPECT_GE(all[2].end, all[1].end);
  // A wait is no stage, and the totals are those of the intervals.
  ASSERT_EQ(profile.stages().size(), 2u);
  EXPECT_EQ(profile.stages()[0].total, all[2].end - all[2].begin);
  EXPECT_EQ(profile.stages()[1].total, all[1].end - all[1].begin);
  profile.clear();
  EXPECT_TRUE(profile.intervals().empty());
  EXPECT_EQ(profile.bytes(), 0);
}

TEST(Profile, IntervalsInFlightBeginAndEndAmidSpans) {
  Profile profile(Profile::Keep::kIntervals);
  const Stream stream = Stream::cpu(1);
  Profile::Point begin;
  Profile::Point end;
  {
    const Profile::Span send(&profile, "send");
    begin = profile.now(stream);
  }
  {
    const Profile::Span receive(&profile, "receive");
    end = profile.now(stream);
  }
  profile.add_in_flight("dispatch", 1, begin, end, 42);
  const auto all = profile.intervals();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[2].name, "dispatch");
  EXPECT_EQ(all[2].track, Track::kInFlight);
  EXPECT_EQ(all[2].microbatch, 1);
  EXPECT_EQ(all[2].bytes, 42);
  EXPECT_GE(all[2].begin, all[0].begin);
  EXPECT_LE(all[2].begin, all[0].end);
  EXPECT_GE(all[2].end, all[1].begin);
  EXPECT_LE(all[2].end, all[1].end);
}

TEST(Profile, KeepsNoIntervalsUnlessAsked) {
  Profile profile;
  const Stream stream = Stream::cpu(1);
  const auto now = Profile::Clock::now();
  {
    const Profile::Span span(&profile, "stage", stream, 1);
    profile.add_wait(now, now);
  }
  profile.add_in_flight("dispatch", 1, profile.now(stream), profile.now(stream), 42);
  EXPECT_TRUE(profile.intervals().empty());
  EXPECT_EQ(profile.stages().size(), 1u);
}

}  // namespace
}  // namespace moebius
