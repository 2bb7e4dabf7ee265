// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The timeline of a run: what every rank did in its timed calls, as a file of trace events that
// Perfetto and chrome://tracing open.  docs/command.md says what it holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/group.h"
#include "moebius/profile.h"

namespace moebius::app {

inline constexpr std::string_view kCall = "call";  // the interval around all others of a call

// An interval as it travels between ranks.
struct TraceEvent {
  char name[16] = {};  // ends with 0
  Profile::Track track = Profile::Track::kHost;
  int32_t microbatch = Profile::kAll;
  int64_t call = 0;
  int64_t begin_ns = 0;  // of the rank's steady clock
  int64_t end_ns = 0;
  int64_t bytes = 0;
};

TraceEvent make_trace_event(const Profile::Interval& interval, int64_t call);

// When a rank passed a barrier, by its steady clock; ranks with the same clock share `clock`.
struct ClockStamp {
  char clock[40] = {};  // ends with 0
  int64_t now_ns = 0;
};
// What to add to `own` times for them to be by the clock of `first`.  0 where that is the same one;
// else the barrier is taken to have ended at one moment.
int64_t clock_shift(const ClockStamp& own, const ClockStamp& first);

// By rank, on rank 0 and by its clock; elsewhere empty.  Collective over the group (null: one
// rank).
std::vector<std::vector<TraceEvent>> gather_trace(std::vector<TraceEvent> own, Group* group);

// The file's text: a process per rank, named, with a thread per track.  Times are from the first
// event on.  about: what is said of the whole.
std::string trace_text(std::span<const std::vector<TraceEvent>> by_rank,
                       std::span<const std::string> rank_names,
                       const std::vector<std::pair<std::string, std::string>>& about);

}  // namespace moebius::app
