// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What `moebius run` found out, and how it is told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/options.h"
#include "app/report/report.h"
#include "app/report/roofline.h"
#include "app/run/layer_cost.h"
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
  LayerCost cost;            // of all ranks together
  std::string quantization;  // "none", or "weights ..., activations ..."
  // Stage and the implementation that was chosen for it.
  std::vector<std::pair<std::string, std::string>> implementations;
  std::string format;  // how rows reached the experts
  int threads = 0;
  int microbatches = 1;
  int combine_parts = 1;
  bool in_waves = false;
  std::string device;    // "cpu" or the GPUs' name
  double load_us = 0;    // from opening the checkpoint to a layer that can be called
  double waited_us = 0;  // of the rank that waited longest
  double call_us = 0;    // median of one forward(), of the slowest rank
  std::vector<std::pair<std::string, double>> stages_us;  // likewise
  RankPlan plan;
  std::vector<RankFigures> ranks;
  std::vector<std::vector<int64_t>> link_bytes;   // [from rank][to rank], sent in a call
  Tensor expert_load;                             // i64 [E], of the last call
  std::vector<std::vector<int64_t>> expert_rows;  // [rank][local expert], likewise
  std::vector<std::vector<TraceEvent>> trace;     // [rank], with --trace
  int64_t workspace_bytes = 0;
  int64_t peak_bytes = 0;
  std::optional<MachinePeak> machine;  // with --report
  std::optional<CheckResult> check;
};

Report make_report(const RunOptions& options, const RunResult& result);

// "weights fp8 128x128, activations fp8 1x128".
std::string describe(const QuantConfig& quant);

}  // namespace moebius::app
