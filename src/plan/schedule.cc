// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule.h"

#include <algorithm>
#include <vector>

namespace moebius::plan {

namespace {

class Clock {
 public:
  void compute(double us) { now_ += us; }
  // Returns when the rows will have arrived; they leave after those sent before.
  double send(double us) {
    link_free_ = std::max(now_, link_free_) + us;
    line_.travelled += us;
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
    return line;
  }

 private:
  double now_ = 0;
  double link_free_ = 0;
  Timeline line_;
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
        clock.compute(p.shares_early ? p.shared : 0);
        clock.await(arrival);
        clock.compute(p.experts);
        arrival = clock.send(p.back);
        break;
      default:
        clock.compute(p.shares_early ? 0 : p.shared);
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
