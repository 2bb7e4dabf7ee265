// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/overlap.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/intervals.h"

namespace moebius {

namespace {

using Clock = Profile::Clock;
using Track = Profile::Track;

struct Times {
  Clock::time_point begin;
  Clock::time_point end;
};

// The union of the intervals, as intervals in order that neither meet nor overlap.
std::vector<Times> united(std::vector<Times> all) {
  std::sort(all.begin(), all.end(),
            [](const Times& a, const Times& b) { return a.begin < b.begin; });
  std::vector<Times> joined;
  for (const Times& next : all) {
    if (joined.empty() || joined.back().end < next.begin) {
      joined.push_back(next);
    } else {
      joined.back().end = std::max(joined.back().end, next.end);
    }
  }
  return joined;
}

std::chrono::nanoseconds length(const std::vector<Times>& all) {
  std::chrono::nanoseconds sum{0};
  for (const Times& times : all) {
    sum += times.end - times.begin;
  }
  return sum;
}

bool computes(const Profile::Interval& interval) {
  return interval.name == "experts" || interval.name == "shared" || interval.name == "router";
}

bool is_of_gpu(const Profile::Interval& interval) {
  return interval.track != Track::kHost && interval.track != Track::kInFlight;
}

}  // namespace

Overlap measure_overlap(std::span<const Profile::Interval> intervals) {
  const bool on_gpu = std::any_of(intervals.begin(), intervals.end(), is_of_gpu);
  std::vector<Times> travel;
  std::vector<Times> computed;
  Overlap overlap;
  for (const Profile::Interval& interval : intervals) {
    const Times times{interval.begin, interval.end};
    if (interval.track == Track::kInFlight) {
      travel.push_back(times);
    } else if (interval.name == Profile::kWait) {
      overlap.waited += times.end - times.begin;
    } else if (computes(interval) && is_of_gpu(interval) == on_gpu) {
      computed.push_back(times);
    }
  }
  travel = united(std::move(travel));
  overlap.travel = length(travel);
  overlap.hidden = common_length(travel, united(std::move(computed)));
  return overlap;
}

}  // namespace moebius
