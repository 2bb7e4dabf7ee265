// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What `moebius info --model` finds out about a checkpoint, before any of it is printed.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/info/layer_choice.h"
#include "app/info/raw_config.h"
#include "checkpoint/survey.h"
#include "moebius/checkpoint.h"

namespace moebius::app {

// Layers whose blocks have equal tensors, so that the same kernels compute them.
struct Kind {
  std::vector<checkpoint::ExpertBlock> blocks;
  checkpoint::BlockSurvey survey;  // of the first
  std::optional<LayerChoice> choice;
  std::string reason;  // why there is no choice

  bool runs() const {
    return choice && choice->router.reason.empty() && choice->cpu.reason.empty();
  }
};

// Names what comes nearest where the model type or the quantization is the obstacle; else empty.
struct Nearest {
  std::string family;
  std::string scheme;
};

struct CheckpointFacts {
  std::string directory;
  std::optional<nlohmann::json> config;
  std::string config_problem;
  RawConfig raw;
  std::optional<Safetensors> files;
  std::string files_problem;
  std::unique_ptr<Checkpoint> checkpoint;  // null where it cannot run
  std::string reason;                      // why it cannot run
  Nearest nearest;
  std::vector<Kind> kinds;
  std::vector<checkpoint::ExpertBlock> others;  // blocks that are no layers of the model
};

// Reads config.json, the headers of all shards, and of each kind of layer an expert or two.
// Throws InvalidArgument where the folder has neither a config.json nor weights that can be read.
CheckpointFacts read_checkpoint_facts(const std::string& directory);

}  // namespace moebius::app
