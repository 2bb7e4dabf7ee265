// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/intervals.h"
#include "layer/turns.h"

namespace moebius::plan {

namespace {

struct Interval {
  double begin;
  double end;
};

class Clock {
 public:
  void compute(double us) { now_ += us; }
  // The time of experts.  It hides rows in flight; copying and quantizing rows does not.
  void multiply(double us) {
    multiplied_.push_back({now_, now_ + us});
    now_ += us;
  }
  // Returns the time of arrival.  Rows leave after those that were sent before.
  double send(double us) {
    const double begin = std::max(now_, link_free_);
    link_free_ = begin + us;
    in_flight_.push_back({begin, link_free_});
    line_.travelled += us;  // transfers never overlap, so this is the length of their union
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
    line.hidden = common_length(in_flight_, multiplied_);
    return line;
  }

 private:
  double now_ = 0;
  double link_free_ = 0;
  Timeline line_;
  std::vector<Interval> in_flight_;
  std::vector<Interval> multiplied_;
};

// Mirrors run_microbatch of ModularKernel.
Task run_microbatch(const MicrobatchTimes& p, Clock& clock) {
  const auto wait_for = [&clock](double us) {
    return [&clock, arrival = clock.send(us)] { clock.await(arrival); };
  };
  const auto share = [&](bool shares) {
    return [&clock, us = shares ? p.shared : 0.0] { clock.multiply(us); };
  };
  clock.compute(p.prepare);
  Travel there{wait_for(p.there), share(p.shares_early)};
  co_yield std::move(there);
  clock.compute(p.before_experts);
  clock.multiply(p.experts - p.last_gemm);
  double sent = 0;
  for (int part = 0; part < p.parts_back; ++part) {
    if (part > 0) {
      clock.send(sent);
    }
    clock.multiply(p.last_gemm / p.parts_back * (part > 0 ? p.beside : 1));
    clock.compute(p.after_experts / p.parts_back);
    sent = p.back_start + (p.back - p.back_start) / p.parts_back;
  }
  Travel back{wait_for(sent), share(!p.shares_early)};
  co_yield std::move(back);
  clock.compute(p.receive);
}

}  // namespace

Timeline run_schedule(std::span<const MicrobatchTimes> parts, int max_in_flight) {
  Clock clock;
  Turns turns(max_in_flight, /*hooks_enqueue=*/false);
  turns.run(static_cast<int>(parts.size()),
            [&](int i) { return run_microbatch(parts[static_cast<size_t>(i)], clock); });
  return clock.line();
}

}  // namespace moebius::plan
