// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank's part of `moebius run`: it loads its share of the layer, runs it and tells the other
// ranks its figures.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/options.h"
#include "app/report/trace.h"
#include "app/run/layer_cost.h"
#include "app/run/layer_input.h"
#include "app/run/rank_plan.h"
#include "moebius/checkpoint.h"
#include "moebius/profile.h"
#include "moebius/router.h"

namespace moebius::app {

// The stages of a call, in the order of the pipeline.
inline constexpr std::array<std::string_view, 5> kStages = {"router", "prepare", "experts",
                                                            "finalize", "shared"};

// Returns the microseconds of all spans of that name.
double stage_us(const Profile& profile, std::string_view stage);

// Returns the value that --router-sums names by "stated" or "tensor".
LogitSums logit_sums_of(std::string_view option);
// Returns the value that --sum names by "selections" or "ranks".
LowLatencySum low_latency_sum_of(std::string_view option);

// The figures of one rank.  Times are medians over the calls, sizes are those of one call.
struct RankFigures {
  int64_t node = 0;
  int64_t tokens = 0;  // that the rank brought
  int64_t rows = 0;    // that its experts computed
  int64_t num_experts = 0;
  int64_t max_expert_rows = 0;  // rows of the fullest of them
  int64_t intra_node_bytes = 0;
  int64_t inter_node_bytes = 0;
  // Of the tokens that the rank sent: their selections, the copies (one row per rank that has some
  // of them), and the copies that went to another node.  -1 where they are not counted.
  int64_t selections = -1;
  int64_t copies = -1;
  int64_t node_copies = -1;
  int64_t workspace_bytes = 0;
  int64_t transport_bytes = 0;  // see Transports::bytes
  double call_us = 0;
  double waited_us = 0;  // for other ranks, by the host
  double travel_us = 0;  // see layer/overlap.h
  double hidden_us = 0;
  std::array<double, kStages.size()> stage_us{};
};

struct LayerRun {
  LayerCost cost;            // of this rank's share
  int64_t weight_bytes = 0;  // of all ranks together
  std::string quantization;
  std::string weight_format;  // "fp8 128x128", "bf16"
  std::vector<std::pair<std::string, std::string>> implementations;
  std::string format;    // how rows reach the experts
  int threads = 0;       // of this rank
  int microbatches = 1;  // into which a call was cut
  int combine_parts = 1;
  bool in_waves = false;  // whether its rows arrived in waves
  std::string device;     // "cpu" or the GPUs' name
  double load_us = 0;
  // Of all ranks together: what loads have read from the model's files since they were opened, and
  // what the disks have delivered for this load.
  int64_t read_so_far = 0;
  int64_t disk_bytes = 0;
  std::vector<RankFigures> ranks;
  std::vector<std::vector<int64_t>> link_bytes;   // [from rank][to rank], sent in a call
  Tensor expert_load;                             // i64 [E], over all ranks
  std::vector<std::vector<int64_t>> expert_rows;  // [rank][local expert]: rows that it computed
  std::vector<std::vector<TraceEvent>> trace;     // [rank], on rank 0, with --trace
  Tensor output;                                  // f32 [T, H], all rows, on every rank
};

// Returns MoeLayerOptions::capacity.  Calls that a graph records have one even where none was asked
// for.
std::optional<int64_t> capacity_of(const RunOptions& options,
                                   All2AllBackend backend,
                                   int num_nodes);

// Makes the stream of the rank's GPU, or of its part of the CPUs where rank threads share this
// process.
Stream make_stream(const RunOptions& options, const RankPlan& plan, const Group* group);

// Loads and runs the rank's share of the layer.  Collective over the group (null: a single rank).
LayerRun run_layer(const RunOptions& options,
                   const Checkpoint& checkpoint,
                   int64_t layer,
                   const Tensor& hidden,
                   const RankPlan& plan,
                   Group* group);

}  // namespace moebius::app
