// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Stage times: what one micro-batch computes and sends, in microseconds.  docs/plan.md has the
// formulas in words.
#pragma once

#include "plan/machine.h"
#include "plan/schedule.h"
#include "plan/traffic.h"

namespace moebius::plan {

// What a piece of a call brings to its slowest rank.
struct PieceLoad {
  double tokens = 0;  // that a rank brings
  Copies copies;
  std::vector<RankTraffic> traffic;
  double selections = 0;  // rows that the fullest rank computes
  double rows = 0;        // that it receives (all-gather: all tokens)
  double touched = 0;     // its experts with rows
};
PieceLoad piece_load(All2AllBackend backend,
                     const Deployment& deployment,
                     const RoutingModel& routing,
                     double tokens);

// The parts of one piece by stage; MicrobatchTimes are made of them.
struct StageTimes {
  double prepare_before = 0, there = 0, prepare_after = 0;
  double experts = 0;
  double finalize_before = 0, back = 0, finalize_after = 0;
  double shared = 0;
  double last_gemm = 0;   // of experts
  double back_start = 0;  // of back, whatever travels
  int parts_back = 1;     // of a single micro-batch

  double prepare() const { return prepare_before + there + prepare_after; }
  double finalize() const { return finalize_before + back + finalize_after; }
  MicrobatchTimes part(bool shares_early, bool in_parts) const;
};
StageTimes stage_times(All2AllBackend backend,
                       const Deployment& deployment,
                       const Machine& machine,
                       const PieceLoad& load);

// What follows the last piece, see ending_traffic(): nothing is computed while it travels.
struct EndingTimes {
  double travel = 0;
  double compute = 0;  // sums; on a CPU copies
};
EndingTimes ending_times(All2AllBackend backend,
                         const Deployment& deployment,
                         const Machine& machine);

// Of all tokens of a rank, before they are cut into pieces.
double router_us(const Deployment& deployment, const Machine& machine, double tokens);

}  // namespace moebius::plan
