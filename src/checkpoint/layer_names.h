// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerNames: the names that the tensors of one layer have in the files, found among the spellings
// of its family.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/family.h"
#include "moebius/safetensors.h"

namespace moebius::checkpoint {

struct ModelConfig;

// The names of routed experts, or of the shared experts as one expert.
struct ExpertNames {
  std::string path;  // routed: modules are PATH.<expert>.<module>; shared: PATH.<module>
  ExpertModules modules;
  // Where gate and up (or routed experts) share a tensor: its name without a suffix such as
  // _blocks or .weight, and that of down.  Else empty.
  std::string fused_up;
  std::string fused_down;
  bool has_fused_modules = false;  // the weight of NAME is NAME.weight, and not NAME itself
};

struct LayerNames {
  std::string block;   // "model.layers.1.mlp"
  std::string router;  // these are tensors
  std::string router_bias;
  std::string correction_bias;
  std::string shared_gate;
  ExpertNames experts;
  ExpertNames shared;
};

// Throws InvalidArgument naming the directory where the layer has no router.
LayerNames find_names(const Safetensors& files,
                      const ModelConfig& config,
                      int64_t layer,
                      const std::string& directory);
// The names of a published checkpoint of the family.
LayerNames published_names(const Family& family, int64_t layer);

// Tensors of the layer that no call has read: those below its block and its shared experts.  A
// tensor of one expert counts as read where that of another one has been.
std::vector<std::string> unread_tensors(const Safetensors& files, const LayerNames& names);

}  // namespace moebius::checkpoint
