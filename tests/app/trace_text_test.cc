// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The text of a trace and the shift of its clocks, tested with made-up events.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "app/report/trace.h"

namespace moebius::app {
namespace {

using Track = Profile::Track;

Profile::Clock::time_point at(int64_t ns) {
  return Profile::Clock::time_point(std::chrono::nanoseconds(ns));
}

TEST(TraceText, TimesAreMicrosecondsFromTheFirstEventOn) {
  const std::vector<std::vector<TraceEvent>> by_rank = {
      {make_trace_event({"experts", Track::kHost, 1, at(7'000'500), at(7'002'000), 12}, 4)},
      {make_trace_event({"dispatch", Track::kInFlight, 2, at(7'000'000), at(7'000'001), 0}, 0)}};
  const std::vector<std::string> names = {"rank 0", "rank 1"};
  const auto json = nlohmann::json::parse(trace_text(by_rank, names, {{"model", "a \"model\""}}));
  EXPECT_EQ(json["otherData"]["model"], "a \"model\"");
  std::vector<nlohmann::json> events;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") {
      events.push_back(event);
    }
  }
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "experts");
  EXPECT_EQ(events[0]["cat"], "stage");
  EXPECT_EQ(events[0]["pid"], 0);
  EXPECT_DOUBLE_EQ(events[0]["ts"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(events[0]["dur"].get<double>(), 1.5);
  EXPECT_EQ(events[0]["args"], nlohmann::json({{"call", 4}, {"microbatch", 1}, {"bytes", 12}}));
  EXPECT_EQ(events[1]["cat"], "transfer");
  EXPECT_EQ(events[1]["pid"], 1);
  EXPECT_DOUBLE_EQ(events[1]["ts"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(events[1]["dur"].get<double>(), 0.001);
}

TEST(TraceText, EveryTrackIsAThreadWithItsName) {
  std::vector<TraceEvent> events;
  const auto add = [&](Track track, int microbatch) {
    events.push_back(make_trace_event({"x", track, microbatch, at(5), at(6), 0}, 0));
  };
  add(Track::kHost, 0);
  add(Track::kCompute, 1);
  add(Track::kTransfers, 0);
  add(Track::kShared, 0);
  add(Track::kInFlight, Profile::kAll);
  add(Track::kInFlight, 0);
  add(Track::kInFlight, 1);
  const std::vector<std::string> names = {"rank 0 (node 0)"};
  const auto json = nlohmann::json::parse(trace_text({&events, 1}, names, {}));
  std::map<int, std::string> threads;
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] == "thread_name") {
      threads[event["tid"].get<int>()] = event["args"]["name"];
    }
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], names[0]);
    }
  }
  EXPECT_EQ(threads, (std::map<int, std::string>{{0, "host"},
                                                 {1, "compute stream"},
                                                 {2, "transfers stream"},
                                                 {3, "shared experts stream"},
                                                 {4, "in flight"},
                                                 {5, "in flight, micro-batch 0"},
                                                 {6, "in flight, micro-batch 1"}}));
}

TEST(TraceText, WithoutEventsItIsStillATrace) {
  const auto json = nlohmann::json::parse(trace_text({}, {}, {}));
  EXPECT_TRUE(json["traceEvents"].empty());
}

// The clocks of other machines count from another moment, but all pass the same barrier.
TEST(TraceClocks, AreShiftedOnlyWhereTheyDiffer) {
  const auto stamp = [](std::string_view clock, int64_t now_ns) {
    ClockStamp made;
    made.clock = clock;
    made.now_ns = now_ns;
    return made;
  };
  EXPECT_EQ(clock_shift(stamp("here", 1'000), stamp("here", 900)), 0);
  EXPECT_EQ(clock_shift(stamp("there", 50), stamp("here", 900)), 850);
  EXPECT_EQ(clock_shift(stamp("there", 5'000), stamp("here", 900)), -4'100);
}

}  // namespace
}  // namespace moebius::app
