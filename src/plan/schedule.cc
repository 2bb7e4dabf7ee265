// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule.h"

#include <algorithm>
#include <vector>

namespace moebius::plan {

namespace {

struct Interval {
  double begin;
  double end;
};

// REQUIRES: both in order and without overlaps.
double common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max(std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin), 0.0);
    ++(a[i].end < b[j].end ? i : j);
  }
  return sum;
}

class Clock {
 public:
  void compute(double us) { now_ += us; }
  // Of experts: hides rows in flight, which copying and quantizing rows does not.
  void multiply(double us) {
    multiplied_.push_back({now_, now_ + us});
    now_ += us;
  }
  // Returns when the rows will have arrived; they leave after those sent before.
  double send(double us) {
    const double begin = std::max(now_, link_free_);
    link_free_ = begin + us;
    in_flight_.push_back({begin, link_free_});
    line_.travelled += us;  // rows wait for their turn while others are in flight: so the union
    return link_free_;
  }
  void await(double arrival) {
    if (arrival > now_) {
      line_.waited += arrival - now_;
      now_ = arrival;
    }
  }
  Timeline line() const {
    Timeline line = line_;
    line.total = now_;
    line.hidden = common(in_flight_, multiplied_);
    return line;
  }

 private:
  double now_ = 0;
  double link_free_ = 0;
  Timeline line_;
  std::vector<Interval> in_flight_;
  std::vector<Interval> multiplied_;
};

// A task of three turns.
struct Flight {
  const PartTimes* part = nullptr;
  int turns = 0;
  double arrival = 0;

  bool is_under_way() const { return part != nullptr && turns < 3; }

  void run_turn(Clock& clock) {
    const PartTimes& p = *part;
    switch (turns++) {
      case 0:
        clock.compute(p.prepare);
        arrival = clock.send(p.there);
        break;
      case 1:
        clock.multiply(p.shares_early ? p.shared : 0);
        clock.await(arrival);
        clock.compute(p.before_experts);
        clock.multiply(p.experts);
        clock.compute(p.after_experts);
        arrival = clock.send(p.back);
        break;
      default:
        clock.multiply(p.shares_early ? 0 : p.shared);
        clock.await(arrival);
        clock.compute(p.receive);
    }
  }
};

}  // namespace

Timeline run_schedule(std::span<const PartTimes> parts, int max_in_flight) {
  Clock clock;
  std::vector<Flight> flights(std::min(parts.size(), static_cast<size_t>(max_in_flight)));
  size_t next = 0;
  bool is_under_way = true;
  while (is_under_way) {
    is_under_way = false;
    for (Flight& flight : flights) {
      if (flight.is_under_way()) {
        flight.run_turn(clock);
      }
      if (!flight.is_under_way() && next < parts.size()) {
        flight = {&parts[next++]};
        flight.run_turn(clock);
      }
      is_under_way = is_under_way || flight.is_under_way();
    }
  }
  return clock.line();
}

}  // namespace moebius::plan
