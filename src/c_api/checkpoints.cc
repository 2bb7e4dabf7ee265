// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/checkpoints.h"

#include <memory>
#include <string>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/structs.h"

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_checkpoint_open(const char* directory, moebius_checkpoint* checkpoint) {
  return giving(checkpoint, "checkpoint", [&] {
    const std::string folder = read_text(directory, "directory");
    return make_handle(std::make_shared<CheckpointObject>(folder.c_str()));
  });
}

moebius_status moebius_checkpoint_get_info(moebius_checkpoint checkpoint,
                                           moebius_model_info* info) {
  return guarded([&] {
    const auto object = find<CheckpointObject>(checkpoint);
    const ModelInfo& model = object->checkpoint.info();
    write_struct(info, "info",
                 {.struct_size = 0,
                  .family = model.family.c_str(),
                  .quant_method = model.quant_method.c_str(),
                  .moe_layers = model.moe_layers.data(),
                  .num_moe_layers = static_cast<int64_t>(model.moe_layers.size()),
                  .num_layers = model.num_layers,
                  .hidden = model.hidden,
                  .intermediate = model.intermediate,
                  .num_experts = model.num_experts,
                  .topk = model.topk,
                  .num_shared_experts = model.num_shared_experts,
                  .shared_intermediate = model.shared_intermediate,
                  .dtype = model.dtype ? static_cast<int32_t>(*model.dtype) : -1});
  });
}

moebius_status moebius_checkpoint_destroy(moebius_checkpoint checkpoint) {
  return guarded([&] { destroy_handle<CheckpointObject>(checkpoint); });
}

moebius_status moebius_make_model(const char* preset,
                                  int64_t num_layers,
                                  const char* quant,
                                  uint64_t seed,
                                  const char* directory,
                                  int64_t* bytes) {
  return guarded([&] {
    const int64_t written =
        make_model(read_text(preset, "preset"), num_layers, quant == nullptr ? "none" : quant, seed,
                   read_text(directory, "directory"));
    if (bytes != nullptr) {
      *bytes = written;
    }
  });
}
