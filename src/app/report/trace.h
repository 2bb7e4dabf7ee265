// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The timeline of a run: it shows what every rank did in its timed calls, as a file of trace events
// that Perfetto and chrome://tracing can open.  docs/command.md describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/group/failure.h"
#include "moebius/group.h"
#include "moebius/profile.h"

namespace moebius::app {

inline constexpr std::string_view kCall = "call";  // the interval around all others of a call

// An interval as it travels between ranks.
struct TraceEvent {
  comm::FixedText<16> name;
  Profile::Track track = Profile::Track::kHost;
  int32_t microbatch = Profile::kAll;
  int64_t call = 0;
  int64_t begin_ns = 0;  // by the rank's steady clock
  int64_t end_ns = 0;
  int64_t bytes = 0;
};

TraceEvent make_trace_event(const Profile::Interval& interval, int64_t call);

// The time at which a rank passed a barrier, by its steady clock.  Ranks with the same clock have
// the same `clock`.
struct ClockStamp {
  comm::FixedText<40> clock;
  int64_t now_ns = 0;
};
// Returns what must be added to times by the clock of `own` to get times by the clock of `first`.
// It is 0 where both have the same clock.  Otherwise both are taken to have passed the barrier at
// the same moment.
int64_t clock_shift(const ClockStamp& own, const ClockStamp& first);

// Returns the events of all ranks, by rank, on rank 0, with times by its clock; on other ranks it
// returns nothing.  Collective over the group (null: one rank).
std::vector<std::vector<TraceEvent>> gather_trace(std::vector<TraceEvent> own, Group* group);

// Returns the text of the file.  Each rank is a process with its name, and each track a thread of
// it.  Times count from the first event.  about: facts about the whole run.
std::string trace_text(std::span<const std::vector<TraceEvent>> by_rank,
                       std::span<const std::string> rank_names,
                       const std::vector<std::pair<std::string, std::string>>& about);

}  // namespace moebius::app
