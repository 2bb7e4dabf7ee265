// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Schedule: when the micro-batches of a call compute and when their rows travel.  One thing
// computes and one travels at a time; turns are those of src/layer/turns.h, by a made-up clock.
#pragma once

#include <span>

namespace moebius::plan {

// What one micro-batch takes, in microseconds, in the order of ModularKernel's
// run_microbatch.
struct MicrobatchTimes {
  double prepare = 0;         // computed before its rows leave
  double there = 0;           // rows on their way to the experts
  double shared = 0;          // shared experts, while rows travel
  bool shares_early = true;   // before the rows are awaited that come, else that return
  double before_experts = 0;  // unpacking and quantizing rows that have come
  double experts = 0;
  double after_experts = 0;  // sums, before rows are sent back
  double back = 0;
  // Rows go back in so many parts, each while the next is made by what these say of `experts`: all
  // but the first take `beside` times as long.
  int parts_back = 1;
  double last_gemm = 0;
  double beside = 1;
  double back_start = 0;  // of `back`, what every part takes anew
  double receive = 0;     // computed once they are back
};

struct Timeline {
  double total = 0;
  double travelled = 0;  // while rows are in flight, whatever their number (layer/overlap.h)
  double hidden = 0;     // of it, while experts or shared experts compute
  double waited = 0;     // of it, while nothing is computed

  double hidden_share() const { return travelled > 0 ? hidden / travelled : 0; }
};

// At most max_in_flight parts have begun and are not done.
Timeline run_schedule(std::span<const MicrobatchTimes> parts, int max_in_flight);

}  // namespace moebius::plan
