// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius run --trace`: the file is a trace, and its stages, bytes and overlap are those in the
// report of the same run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

// Times in the file are rounded to 0.001 us, and sums add many of them.
constexpr double kRounding = 0.1;

struct Event {
  std::string name;
  std::string category;
  double begin = 0;
  double end = 0;
  int rank = 0;
  int thread = 0;
  int call = 0;
  int microbatch = -1;
  int64_t bytes = 0;
};

struct Trace {
  std::vector<Event> events;  // events with a duration
  std::map<int, std::string> ranks;
  std::map<std::pair<int, int>, std::string> threads;

  explicit Trace(const std::string& file) {
    const nlohmann::json json = read_json(file);
    for (const auto& event : json["traceEvents"]) {
      const int rank = event["pid"].get<int>();
      const int thread = event["tid"].get<int>();
      const auto& args = event["args"];
      const std::string name = event["name"];
      if (name == "process_name") {
        ranks[rank] = args["name"];
      } else if (name == "thread_name") {
        threads[{rank, thread}] = args["name"];
      } else if (event["ph"] == "X") {
        const double begin = event["ts"].get<double>();
        events.push_back({name, event["cat"], begin, begin + event["dur"].get<double>(), rank,
                          thread, args["call"].get<int>(), args.value("microbatch", -1),
                          args.value("bytes", int64_t{0})});
      }
    }
  }

  template <typename Wanted>
  std::vector<Event> all(Wanted&& wanted) const {
    std::vector<Event> some;
    std::copy_if(events.begin(), events.end(), std::back_inserter(some), wanted);
    return some;
  }
  template <typename Wanted>
  double sum(Wanted&& wanted) const {
    double us = 0;
    for (const Event& event : all(wanted)) {
      us += event.end - event.begin;
    }
    return us;
  }
};

struct Traced {
  nlohmann::json json;
  Trace trace;
};

Traced run(const Words& options) {
  const ScratchFolder scratch;
  const CommandResult result = run_command(run_tiny(options) + "--trace" + scratch / "t.json" +
                                           "--json" + scratch / "r.json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // The run writes nothing beside the two files.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 2);
  return {read_json(scratch / "r.json"), Trace(scratch / "t.json")};
}

// Expects that two events of a track never overlap in part: one is inside the other or begins after
// its end.
void expect_nested(const Trace& trace) {
  std::map<std::pair<int, int>, std::vector<Event>> tracks;
  for (const Event& event : trace.events) {
    EXPECT_LE(event.begin, event.end) << event.name;
    tracks[{event.rank, event.thread}].push_back(event);
  }
  for (auto& [track, events] : tracks) {
    EXPECT_EQ(trace.ranks.count(track.first), 1u);
    EXPECT_EQ(trace.threads.count(track), 1u);
    std::vector<Event> open;
    for (const Event& event : events) {
      while (!open.empty() && open.back().end <= event.begin + 1e-4) {
        open.pop_back();
      }
      if (!open.empty()) {
        EXPECT_LE(event.end, open.back().end + 1e-4)
            << event.name << " in " << open.back().name << ", rank " << track.first << ", "
            << trace.threads.at(track);
      }
      open.push_back(event);
    }
  }
}

// Returns how long an event of `a` and an event of `b` are under way at the same time.
double common(const std::vector<Event>& a, const std::vector<Event>& b) {
  std::set<double> times;
  for (const auto* events : {&a, &b}) {
    for (const Event& event : *events) {
      times.insert({event.begin, event.end});
    }
  }
  const auto covers = [](const std::vector<Event>& events, double from, double to) {
    return std::any_of(events.begin(), events.end(),
                       [&](const Event& event) { return event.begin <= from && to <= event.end; });
  };
  double sum = 0;
  for (auto next = times.begin(); next != times.end();) {
    const double from = *next++;
    if (next != times.end() && covers(a, from, *next) && covers(b, from, *next)) {
      sum += *next - from;
    }
  }
  return sum;
}

// Expects that trace and report have the same figures.  REQUIRES: the run made one timed call, so
// that its figures are no medians.
void expect_agreement(const Traced& run) {
  const Trace& trace = run.trace;
  const auto& parallel = run.json["parallel"];
  const int num_ranks = parallel["ranks"].get<int>();
  EXPECT_EQ(static_cast<int>(trace.ranks.size()), num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    SCOPED_TRACE(rank);
    const auto& figures = parallel["per_rank"][static_cast<size_t>(rank)];
    const auto is = [rank](const std::string& name) {
      return [rank, name](const Event& event) { return event.rank == rank && event.name == name; };
    };
    for (const std::string stage : {"router", "prepare", "experts", "finalize", "shared"}) {
      EXPECT_NEAR(trace.sum(is(stage)), figures[stage].get<double>(), kRounding) << stage;
    }
    EXPECT_GT(trace.sum(is("experts")), 0);
    EXPECT_NEAR(trace.sum(is("wait")), figures["waited_us"].get<double>(), kRounding);
    ASSERT_EQ(trace.all(is("call")).size(), 1u);
    EXPECT_LE(trace.sum(is("call")), figures["call_us"].get<double>() + kRounding);

    // Some event of the host has sent every byte, and most of the bytes were in flight for a while.
    int64_t sent = 0;
    int64_t in_flight = 0;
    for (const Event& event : trace.events) {
      if (event.rank == rank) {
        (event.category == "transfer" ? in_flight : sent) += event.bytes;
      }
    }
    EXPECT_EQ(sent, figures["intra_node_bytes"].get<int64_t>() +
                        figures["inter_node_bytes"].get<int64_t>());
    EXPECT_LE(in_flight, sent);
    EXPECT_GT(in_flight, sent / 2);

    const auto travel = trace.all(
        [&](const Event& event) { return event.rank == rank && event.category == "transfer"; });
    const auto computed = trace.all([&](const Event& event) {
      return event.rank == rank &&
             (event.name == "experts" || event.name == "shared" || event.name == "router");
    });
    const auto& overlap = run.json["overlap"]["per_rank"][static_cast<size_t>(rank)];
    EXPECT_EQ(overlap["rank"], rank);
    EXPECT_NEAR(overlap["travel_us"].get<double>(), common(travel, travel), kRounding);
    EXPECT_NEAR(overlap["hidden_us"].get<double>(), common(travel, computed), kRounding);
  }
}

Words words(const std::string& backend, const std::string& microbatches) {
  return "--tokens 160 --ranks 2 --repeat 1 --experts cpu_portable --all2all" +
         Words{backend, "--microbatches", microbatches};
}

TEST(Trace, SaysWhatTheReportSays) {
  for (const std::string backend : {"allgather_reducescatter", "high_throughput", "low_latency"}) {
    SCOPED_TRACE(backend);
    const Traced two = run(words(backend, "2"));
    EXPECT_EQ(two.json["parallel"]["microbatches"], 2);
    expect_nested(two.trace);
    expect_agreement(two);
    // Both micro-batches of both ranks are computed, dispatched and combined.
    for (int rank = 0; rank < 2; ++rank) {
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        for (const std::string name : {"prepare", "experts", "finalize", "dispatch", "combine"}) {
          EXPECT_FALSE(two.trace
                           .all([&](const Event& event) {
                             return event.rank == rank && event.microbatch == microbatch &&
                                    event.name == name;
                           })
                           .empty())
              << name << " of micro-batch " << microbatch << ", rank " << rank;
        }
      }
    }
  }
}

TEST(Trace, OfTensorParallelRanksHasTheirSums) {
  const Traced sums = run("--tp 2 --repeat 1");
  expect_nested(sums.trace);
  expect_agreement(sums);
  const Traced both = run("--tp 2 --dp 2 --all2all high_throughput --repeat 1 --ranks-per-node 2");
  expect_nested(both.trace);
  expect_agreement(both);
}

TEST(Trace, OfOneRankHasNothingInFlight) {
  const Traced one = run("--tokens 8");
  expect_nested(one.trace);
  EXPECT_EQ(one.trace.ranks.size(), 1u);
  EXPECT_EQ(one.trace.threads.size(), 1u);
  EXPECT_FALSE(one.json.contains("overlap"));
  for (const auto& entry : one.json["time"]["stages"]) {
    const auto stage = entry["stage"].get<std::string>();
    EXPECT_FALSE(one.trace.all([&](const Event& event) { return event.name == stage; }).empty());
  }
}

// Expects that the ranks' times are by one clock: a collective call cannot end on one rank before
// it has begun on all.
void expect_one_line(const Trace& trace, int num_ranks, int num_calls) {
  for (int call = 0; call < num_calls; ++call) {
    const auto calls =
        trace.all([&](const Event& event) { return event.call == call && event.name == "call"; });
    ASSERT_EQ(static_cast<int>(calls.size()), num_ranks);
    double last_begin = 0;
    double first_end = calls[0].end;
    for (const Event& event : calls) {
      last_begin = std::max(last_begin, event.begin);
      first_end = std::min(first_end, event.end);
    }
    EXPECT_LT(last_begin, first_end);
    for (const Event& event : trace.events) {
      if (event.call == call + 1) {
        EXPECT_GE(event.begin, first_end);
      }
    }
  }
}

TEST(Trace, HasAllTimedCallsAndRanksOnOneLine) {
  const Traced four = run("--ranks 4 --all2all high_throughput --repeat 3");
  expect_nested(four.trace);
  expect_one_line(four.trace, 4, 3);
}

// Expects that the rank that sends first waits until the rows of the other rank have arrived.
void expect_late(const Trace& trace, double latency_us) {
  std::map<std::pair<std::string, int>, std::vector<Event>> transfers;
  for (const Event& event : trace.events) {
    if (event.category == "transfer") {
      transfers[{event.name, event.microbatch}].push_back(event);
    }
  }
  EXPECT_FALSE(transfers.empty());
  for (auto& [transfer, ranks] : transfers) {
    ASSERT_EQ(ranks.size(), 2u) << transfer.first;
    if (ranks[1].begin < ranks[0].begin) {
      std::swap(ranks[0], ranks[1]);
    }
    EXPECT_GE(ranks[0].end, ranks[1].begin + latency_us) << transfer.first;
  }
}

// Over a link with a high latency one micro-batch hides nothing, and two hide something.
TEST(Trace, ShowsWhatTravelsOverASlowLink) {
  constexpr double kLatencyUs = 20'000;
  setenv("MOEBIUS_LINK_LATENCY_US", "20000", 1);
  for (const std::string backend : {"high_throughput", "low_latency"}) {
    SCOPED_TRACE(backend);
    const Traced one = run(words(backend, "1"));
    const Traced two = run(words(backend, "2"));
    for (const Traced* each : {&one, &two}) {
      expect_nested(each->trace);
      expect_agreement(*each);
      expect_late(each->trace, kLatencyUs);
    }
    const auto& alone = one.json["overlap"];
    const auto& overlapped = two.json["overlap"];
    EXPECT_EQ(alone["hidden_share"], 0);
    // A rank that comes late waits less, but then the other one waits longer.
    double waited = 0;
    double travel = 0;
    for (size_t rank = 0; rank < 2; ++rank) {
      waited += one.json["parallel"]["per_rank"][rank]["waited_us"].get<double>();
      travel += alone["per_rank"][rank]["travel_us"].get<double>();
    }
    EXPECT_GE(waited, 2 * kLatencyUs);
    EXPECT_GE(travel, 2 * kLatencyUs);
    EXPECT_GT(overlapped["hidden_share"], 0);
    EXPECT_LE(overlapped["hidden_share"], 1);
  }
  unsetenv("MOEBIUS_LINK_LATENCY_US");
}

#ifdef MOEBIUS_HAVE_MPI
TEST(Trace, OfProcessesIsOnOneLine) {
  const ScratchFolder scratch;
  const std::string file = scratch / "t.json";
  run_processes(2, run_tiny("--group mpi --all2all high_throughput --repeat 2 --trace") + file);
  const Trace trace(file);
  EXPECT_EQ(trace.ranks.size(), 2u);
  expect_nested(trace);
  expect_one_line(trace, 2, 2);
}
#endif

}  // namespace
}  // namespace moebius::test
