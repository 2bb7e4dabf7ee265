// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Schedule: when the micro-batches of a call compute and when their rows travel.  One micro-batch
// computes and one transfer travels at a time.  src/layer/turns.h gives turns, by a simulated
// clock.
#pragma once

#include <span>

namespace moebius::plan {

// The times of one micro-batch in microseconds, in the order of run_microbatch of ModularKernel.
struct MicrobatchTimes {
  double prepare = 0;         // computing before its rows leave
  double there = 0;           // transfer of rows to the experts
  double shared = 0;          // shared experts, while rows travel
  bool shares_early = true;   // shared experts run during the transfer there, else during that back
  double before_experts = 0;  // unpacking and quantizing received rows
  double experts = 0;
  double after_experts = 0;  // summing before rows are sent back
  double back = 0;
  // Rows go back in parts_back parts, each while the last GEMM computes the next part.  last_gemm
  // is its share of `experts`; all parts but the first take `beside` times as long.
  int parts_back = 1;
  double last_gemm = 0;
  double beside = 1;
  double back_start = 0;  // the share of `back` that every part takes again
  double receive = 0;     // computing after rows are back
};

struct Timeline {
  double total = 0;
  double travelled = 0;  // the time with rows in flight, however many (layer/overlap.h)
  double hidden = 0;     // the part of it in which experts or shared experts compute
  double waited = 0;     // the part of it in which nothing is computed

  double hidden_share() const { return travelled > 0 ? hidden / travelled : 0; }
};

// At most max_in_flight parts are under way at a time.
Timeline run_schedule(std::span<const MicrobatchTimes> parts, int max_in_flight);

}  // namespace moebius::plan
