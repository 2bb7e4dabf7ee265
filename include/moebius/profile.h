// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Profile: the total time of each named stage and, on request, every interval by itself.  Spans may
// nest, and the time of an inner span counts in the totals of both.
// On a GPU a span lasts from the end of the stream's earlier work to the end of the work that was
// enqueued within the span.  Nothing waits for the GPU before stages() or intervals() is called.
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

#include "moebius/api.h"
#include "moebius/stream.h"

namespace moebius MOEBIUS_API {

class Profile {
 public:
  using Clock = std::chrono::steady_clock;

  // The place where the time of an interval passes.  On the CPU it is the host, except for
  // intervals of rows in flight.
  enum class Track {
    kHost,       // the host; with a GPU it enqueues and waits for other hosts
    kCompute,    // the GPU's compute stream
    kTransfers,  // the GPU's stream of transfers
    kShared,     // the GPU's stream of shared experts
    kInFlight,   // rows between ranks, from the start of their send until they are known to be here
  };
  static constexpr int kAll = -1;  // the interval belongs to the call, not to one micro-batch
  static constexpr std::string_view kWait = "wait";

  struct Stage {
    std::string name;
    int64_t calls = 0;
    std::chrono::nanoseconds total{0};
  };

  // One interval of a stage ("experts"), of a transfer in flight ("dispatch", "combine"), or of a
  // wait for other ranks (kWait).
  struct Interval {
    std::string name;
    Track track = Track::kHost;
    int microbatch = kAll;
    Clock::time_point begin;
    Clock::time_point end;
    // The bytes that were handed to the links.  An outer span on the host does not count the bytes
    // of its inner spans.  An interval in flight counts its bytes once more, and intervals of a
    // GPU's streams have none.
    int64_t bytes = 0;
  };

  enum class Keep { kTotals, kIntervals };
  // `now` is the host's clock; tests pass another one.
  explicit Profile(Keep keep = Keep::kTotals, std::function<Clock::time_point()> now = &Clock::now)
      : keep_(keep), now_(std::move(now)) {}
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Measures the time from its construction to its destruction.  With a null profile it costs
  // nothing.  REQUIRES: the spans of a profile end in the reverse order of their construction.
  class Span {
   public:
    Span(Profile* profile, std::string_view stage);
    // `track` is what a GPU's stream is for.  REQUIRES: `stream` outlives the span.
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
    const Stream* gpu_ = nullptr;  // the GPU stream whose time is measured; null: host time
    Event begin_;
    int microbatch_ = kAll;
    Track track_ = Track::kHost;
    int64_t bytes_ = 0;
    Span* outer_ = nullptr;
  };

  // The stages in the order of their first spans.  Waits for the GPU's work in all spans.
  const std::vector<Stage>& stages() const;
  // The intervals in the order in which the host ended them, with GPU times converted to the host's
  // clock.  Waits for the GPU's work.  Empty with kTotals.
  std::vector<Interval> intervals() const;
  void clear();
  bool keeps_intervals() const { return keep_ == Keep::kIntervals; }

  // A point in the order of a stream's work; on the CPU it is the present time.
  struct Point {
    Clock::time_point host;
    Event event;
  };
  Point now(const Stream& stream) const;
  // Adds an interval that is no span, because spans begin and end within it.  Does nothing without
  // kIntervals.
  void add_in_flight(
      std::string_view name, int microbatch, const Point& begin, const Point& end, int64_t bytes);
  // Groups call these two (see Group::set_profile); they count for the innermost open span.
  void add_wait(Clock::time_point begin, Clock::time_point end);
  void add_bytes(int64_t bytes);
  int64_t bytes() const { return bytes_; }  // all bytes since clear()

 private:
  struct OnGpu {
    size_t stage;
    Event begin;
    Event end;
  };
  struct Kept {
    Interval interval;
    Event begin;  // when a GPU tells the time; empty when `interval` has it
    Event end;
  };

  Keep keep_;
  std::function<Clock::time_point()> now_;
  mutable std::vector<Stage> stages_;
  mutable std::vector<OnGpu> on_gpu_;  // spans that are not in the totals yet
  std::vector<Kept> kept_;
  std::optional<Stream> gpu_;  // stream of the last GPU span; all spans share its device's clock
  Span* open_ = nullptr;       // the innermost open span
  int64_t bytes_ = 0;
};

}  // namespace moebius
