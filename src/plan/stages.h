// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Stage times: how long one micro-batch computes and travels, in microseconds.  docs/plan.md has
// the formulas in words.
#pragma once

#include "plan/machine.h"
#include "plan/schedule.h"
#include "plan/traffic.h"

namespace moebius::plan {

// The load of a micro-batch on its slowest rank.
struct PieceLoad {
  double tokens = 0;  // of a rank
  Copies copies;
  std::vector<RankTraffic> traffic;
  double selections = 0;  // rows that the fullest rank computes
  double rows = 0;        // the most rows that a rank receives; with all-gather all tokens
  double touched = 0;     // experts of the fullest rank that have rows
};
PieceLoad piece_load(All2AllBackend backend,
                     const Deployment& deployment,
                     const RoutingModel& routing,
                     double tokens);

// The times of a micro-batch by stage, of which MicrobatchTimes are made.
struct StageTimes {
  double prepare_before = 0, there = 0, prepare_after = 0;
  double experts = 0;
  double finalize_before = 0, back = 0, finalize_after = 0;
  double shared = 0;
  double last_gemm = 0;   // the share of experts
  double back_start = 0;  // the share of back that does not depend on the bytes
  int parts_back = 1;     // if the call is a single micro-batch

  double prepare() const { return prepare_before + there + prepare_after; }
  double finalize() const { return finalize_before + back + finalize_after; }
  MicrobatchTimes part(bool shares_early, bool in_parts) const;
};
StageTimes stage_times(All2AllBackend backend,
                       const Deployment& deployment,
                       const Machine& machine,
                       const PieceLoad& load);

// The times after the last piece, see ending_traffic().  Nothing is computed while rows travel.
struct EndingTimes {
  double travel = 0;
  double compute = 0;  // sums, and copies on a CPU
};
EndingTimes ending_times(All2AllBackend backend,
                         const Deployment& deployment,
                         const Machine& machine);

// Microseconds that the router takes for all tokens of a rank, before they are cut into pieces.
double router_us(const Deployment& deployment, const Machine& machine, double tokens);

// Microseconds by which a call on one GPU is shorter than its router and its experts: the router
// orders the slots of few tokens for the experts, and weights are fetched meanwhile.
double saved_by_router_us(All2AllBackend backend,
                          const Deployment& deployment,
                          const Machine& machine);

}  // namespace moebius::plan
