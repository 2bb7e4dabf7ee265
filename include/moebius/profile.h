// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Profile: time per named stage, and when asked for each interval by itself.  Spans may nest;
// totals count each by itself.
// On a GPU a span lasts from what its stream had to do before it to the end of what was enqueued in
// it; nothing waits until stages() or intervals() is asked for.
// Thread-safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/stream.h"

namespace moebius {

class Profile {
 public:
  using Clock = std::chrono::steady_clock;

  // Whose time an interval is.  On the CPU all is the host's but what is in flight.
  enum class Track {
    kHost,       // on a GPU: enqueues, and waits for other hosts
    kCompute,    // the GPU's stream of a call
    kTransfers,  // its stream of transfers
    kShared,     // its stream of shared experts
    kInFlight,   // rows between ranks, from the begin of their send until they are known to be here
  };
  static constexpr int kAll = -1;  // of no micro-batch: the whole call's
  static constexpr std::string_view kWait = "wait";

  struct Stage {
    std::string name;
    int64_t calls = 0;
    std::chrono::nanoseconds total{0};
  };

  // Of the stages ("experts"), a transfer ("dispatch", "combine"; in flight), or a wait for other
  // ranks (kWait).
  struct Interval {
    std::string name;
    Track track = Track::kHost;
    int microbatch = kAll;
    Clock::time_point begin;
    Clock::time_point end;
    // Handed to the links.  On the host those of spans within are not counted again; what is in
    // flight has them once more, those of a GPU's streams have none.
    int64_t bytes = 0;
  };

  enum class Keep { kTotals, kIntervals };
  // now: for tests, the host's clock.
  explicit Profile(Keep keep = Keep::kTotals, std::function<Clock::time_point()> now = &Clock::now)
      : keep_(keep), now_(std::move(now)) {}
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Measures from construction to destruction; a null profile makes it free.  Spans of a profile
  // end in the opposite order of their begin.
  class Span {
   public:
    Span(Profile* profile, std::string_view stage);
    // track: of the stream, where that is a GPU's.  `stream` outlives the span.
    Span(Profile* profile,
         std::string_view stage,
         const Stream& stream,
         int microbatch = kAll,
         Track track = Track::kCompute);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    friend class Profile;
    Profile* profile_;
    size_t stage_ = 0;
    Clock::time_point start_;
    const Stream* gpu_ = nullptr;  // the stream whose time is measured; null: the host's
    Event begin_;
    int microbatch_ = kAll;
    Track track_ = Track::kHost;
    int64_t bytes_ = 0;
    Span* outer_ = nullptr;
  };

  // In order of first appearance.  Waits for the GPU's work in all spans.
  const std::vector<Stage>& stages() const;
  // In the order in which the host ended them; times of GPUs are put on its clock.  Waits likewise.
  // Empty with kTotals.
  std::vector<Interval> intervals() const;
  void clear();
  bool keeps_intervals() const { return keep_ == Keep::kIntervals; }

  // A point in the order of a stream; on the CPU it is now.
  struct Point {
    Clock::time_point host;
    Event event;
  };
  Point now(const Stream& stream) const;
  // What is no span: an interval that others begin and end within.  Without kIntervals nothing.
  void add_in_flight(
      std::string_view name, int microbatch, const Point& begin, const Point& end, int64_t bytes);
  // By groups (Group::set_profile), for the span that is open.
  void add_wait(Clock::time_point begin, Clock::time_point end);
  void add_bytes(int64_t bytes);
  int64_t bytes() const { return bytes_; }  // all since clear()

 private:
  struct OnGpu {
    size_t stage;
    Event begin;
    Event end;
  };
  struct Kept {
    Interval interval;
    Event begin;  // where a GPU tells the time; null: `interval` has it
    Event end;
  };

  Keep keep_;
  std::function<Clock::time_point()> now_;
  mutable std::vector<Stage> stages_;
  mutable std::vector<OnGpu> on_gpu_;  // not added to the totals yet
  std::vector<Kept> kept_;
  std::optional<Stream> gpu_;  // of the last span there: its clock is the device's
  Span* open_ = nullptr;       // the innermost
  int64_t bytes_ = 0;
};

}  // namespace moebius
