// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The result of `moebius run`, and its report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/options.h"
#include "app/report/report.h"
#include "app/report/roofline.h"
#include "app/run/layer_input.h"
#include "app/run/rank_run.h"
#include "app/run/reference_check.h"
#include "moebius/checkpoint.h"

namespace moebius::app {

struct RunResult {
  ModelInfo model;
  int64_t layer = 0;
  std::string block;  // "model.layers.1.mlp"
  LayerInput input;
  RankPlan plan;
  LayerRun run;          // as rank 0 has it, but with the cost of all ranks together
  double waited_us = 0;  // of the rank that waited longest
  double call_us = 0;    // median of one forward(), of the slowest rank
  std::vector<std::pair<std::string, double>> stages_us;  // by stage, likewise
  int64_t workspace_bytes = 0;                            // of all ranks
  int64_t transport_bytes = 0;  // windows and buffers of all ranks' transports
  int64_t peak_bytes = 0;
  std::optional<MachinePeak> machine;  // with --report
  std::optional<CheckResult> check;
};

Report make_report(const RunOptions& options, const RunResult& result);

}  // namespace moebius::app
