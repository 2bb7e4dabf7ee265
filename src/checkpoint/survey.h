// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A survey of a checkpoint: which blocks of experts its files hold, known by the names of tensors
// alone.  It reads headers only, and needs neither a config.json nor a family that can run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/safetensors.h"

namespace moebius::checkpoint {

// A module of a layer that has experts.
struct ExpertBlock {
  int64_t layer = 0;
  std::string prefix;  // "model.layers.3.mlp"

  bool operator==(const ExpertBlock&) const = default;
};
// All of them, by layer: what lies before ".experts" in names such as
// model.layers.3.mlp.experts.0.up_proj.weight.  names: sorted.
std::vector<ExpertBlock> find_expert_blocks(const std::vector<std::string>& names);

struct BlockSurvey {
  int64_t num_tensors = 0;
  int64_t bytes = 0;
  // As tensors of single experts count them, or the first dimension of fused ones; 0: neither.
  int64_t num_experts = 0;
  std::string dtypes;  // of the experts, as the file spells them, most bytes first: "F8_E4M3, F32"
  // Experts whose tensors have other names, dtypes or shapes than most have; at most a few.
  std::vector<int64_t> unlike;
  uint64_t digest = 0;  // equal for blocks whose tensors have equal names, dtypes and shapes
  // Why tensors could not be looked at, such as a missing shard; the figures lack those.
  std::string problem;
};
// names: all names of the files, sorted.
BlockSurvey survey_block(const Safetensors& files,
                         const std::vector<std::string>& names,
                         const std::string& prefix);

}  // namespace moebius::checkpoint
