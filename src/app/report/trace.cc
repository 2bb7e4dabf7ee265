// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/report/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <type_traits>

#include "app/report/report.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

using Track = Profile::Track;

static_assert(std::is_trivially_copyable_v<TraceEvent>);

int64_t nanoseconds(Profile::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Names the machine's start, from which the steady clock counts.
std::string clock_name() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() ? fmt::format("process {}", getpid()) : id;
}

// Each track is a thread of the trace.  In flight each micro-batch is one, since their intervals
// may overlap.
int thread_of(const TraceEvent& event) {
  const int track = static_cast<int>(event.track);
  return event.track == Track::kInFlight ? track + 1 + event.microbatch : track;
}

std::string thread_name(int thread) {
  constexpr std::string_view kNames[] = {"host", "compute stream", "transfers stream",
                                         "shared experts stream", "in flight"};
  const int in_flight = static_cast<int>(Track::kInFlight);
  return thread <= in_flight ? std::string(kNames[thread])
                             : fmt::format("in flight, micro-batch {}", thread - in_flight - 1);
}

std::string_view category(const TraceEvent& event) {
  const std::string_view name = event.name.view();
  return event.track == Track::kInFlight ? "transfer"
         : name == Profile::kWait        ? "wait"
         : name == kCall                 ? "call"
                                         : "stage";
}

Json to_json(const TraceEvent& event, size_t rank, int64_t origin_ns) {
  Json args = {{"call", event.call}};
  if (event.microbatch != Profile::kAll) {
    args["microbatch"] = event.microbatch;
  }
  if (event.bytes > 0) {
    args["bytes"] = event.bytes;
  }
  const auto us = [](int64_t ns) { return static_cast<double>(ns) / 1e3; };
  return {{"name", event.name.view()},
          {"cat", category(event)},
          {"ph", "X"},
          {"ts", us(event.begin_ns - origin_ns)},
          {"dur", us(event.end_ns - event.begin_ns)},
          {"pid", rank},
          {"tid", thread_of(event)},
          {"args", std::move(args)}};
}

Json metadata(std::string_view what, size_t rank, int thread, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", std::move(args)}};
}

}  // namespace

TraceEvent make_trace_event(const Profile::Interval& interval, int64_t call) {
  TraceEvent event;
  event.name = std::string_view(interval.name);
  event.track = interval.track;
  event.microbatch = interval.microbatch;
  event.call = call;
  event.begin_ns = nanoseconds(interval.begin);
  event.end_ns = nanoseconds(interval.end);
  event.bytes = interval.bytes;
  return event;
}

int64_t clock_shift(const ClockStamp& own, const ClockStamp& first) {
  return own.clock.view() == first.clock.view() ? 0 : first.now_ns - own.now_ns;
}

std::vector<std::vector<TraceEvent>> gather_trace(std::vector<TraceEvent> own, Group* group) {
  if (group == nullptr) {
    return {std::move(own)};
  }
  constexpr std::string_view kOp = "trace";
  const auto size = static_cast<size_t>(group->size());
  ClockStamp stamp;
  stamp.clock = std::string_view(clock_name());
  group->barrier("clocks of the trace");
  stamp.now_ns = nanoseconds(Profile::Clock::now());
  std::vector<ClockStamp> stamps(size);
  all_gather_bytes(*group, kOp, &stamp, sizeof(stamp), stamps.data());
  for (TraceEvent& event : own) {
    const int64_t shift = clock_shift(stamp, stamps.front());
    event.begin_ns += shift;
    event.end_ns += shift;
  }

  const auto num_own = static_cast<int64_t>(own.size());
  std::vector<int64_t> counts(size);
  all_gather_bytes(*group, kOp, &num_own, sizeof(num_own), counts.data());
  const auto bytes_of = [](const std::vector<TraceEvent>& events) {
    return static_cast<int64_t>(events.size() * sizeof(TraceEvent));
  };
  std::vector<std::vector<TraceEvent>> by_rank;
  std::vector<RecvBlock> recvs;
  if (group->rank() == 0) {
    by_rank.resize(size);
    for (size_t r = 0; r < size; ++r) {
      by_rank[r].resize(static_cast<size_t>(counts[r]));
      recvs.push_back({static_cast<int>(r), by_rank[r].data(), bytes_of(by_rank[r])});
    }
  }
  const SendBlock send{0, own.data(), bytes_of(own)};
  group->exchange(kOp, {&send, 1}, recvs);
  return by_rank;
}

std::string trace_text(std::span<const std::vector<TraceEvent>> by_rank,
                       std::span<const std::string> rank_names,
                       const std::vector<std::pair<std::string, std::string>>& about) {
  int64_t origin_ns = std::numeric_limits<int64_t>::max();
  for (const auto& events : by_rank) {
    for (const TraceEvent& event : events) {
      origin_ns = std::min(origin_ns, event.begin_ns);
    }
  }
  Json other = Json::object();
  for (const auto& [key, value] : about) {
    other[key] = value;
  }
  std::string text = fmt::format("{{\"otherData\": {},\n\"traceEvents\": [", json_text(other, -1));
  auto add = [&text, separator = "\n"](const Json& event) mutable {
    text += std::exchange(separator, ",\n") + event.dump();
  };
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    add(metadata("process_name", rank, 0, {{"name", rank_names[rank]}}));
    add(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
    std::vector<TraceEvent> events = by_rank[rank];
    std::set<int> threads;
    for (const TraceEvent& event : events) {
      threads.insert(thread_of(event));
    }
    for (const int thread : threads) {
      add(metadata("thread_name", rank, thread, {{"name", thread_name(thread)}}));
      add(metadata("thread_sort_index", rank, thread, {{"sort_index", thread}}));
    }
    // Of two events that begin at the same time the longer one comes first, so that viewers nest
    // the other in it.
    std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
    for (const TraceEvent& event : events) {
      add(to_json(event, rank, origin_ns));
    }
  }
  return text + "\n]}\n";
}

}  // namespace moebius::app
