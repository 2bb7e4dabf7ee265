// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The roofline of a run: a call takes no less than its operations at the machine's peak, nor than
// the weights it touches at the machine's read bandwidth.
#pragma once

#include <string>

#include "app/report/report.h"
#include "app/run/layer_cost.h"
#include "moebius/group.h"
#include "moebius/stream.h"

namespace moebius::app {

struct RunResult;

struct MachinePeak {
  std::string missing;  // why nothing was measured; then nothing below
  std::string name;     // "AVX2 f32"
  double gflops = 0;
  double read_gb_per_s = 0;
};

// Of all ranks together, about a second.  Collective over the group (null: one rank): each measures
// what its stream has, all at the same time; a GPU that ranks share is the first one's to measure.
MachinePeak measure_machine(const LayerCost& cost, const Stream& stream, Group* group);

// Section "roofline": of the call, and of the stages that have products.
void add_roofline(Report& report, const MachinePeak& machine, const RunResult& result);

}  // namespace moebius::app
