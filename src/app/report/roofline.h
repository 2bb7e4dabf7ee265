// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The roofline of a run: a call takes at least as long as its operations take at the machine's
// peak, and as reading the weights that it touches takes at the machine's read bandwidth.
#pragma once

#include <string>

#include "app/report/report.h"
#include "app/run/layer_cost.h"
#include "moebius/group.h"
#include "moebius/stream.h"

namespace moebius::app {

struct RunResult;

struct MachinePeak {
  std::string missing;  // why nothing was measured; if set, nothing below is
  std::string name;     // "AVX2 f32"
  double gflops = 0;
  double read_gb_per_s = 0;
};

// Measures the peaks of all ranks together, in about a second.  All ranks measure their streams at
// the same time; a GPU that ranks share is measured by the first of them.  Collective over the
// group (null: one rank).
MachinePeak measure_machine(const LayerCost& cost, const Stream& stream, Group* group);

// Adds section "roofline", for the call and for the stages that multiply.
void add_roofline(Report& report, const MachinePeak& machine, const RunResult& result);

}  // namespace moebius::app
