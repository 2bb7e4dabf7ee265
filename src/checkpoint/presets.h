// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Presets: the published config.json of real models, as far as the MoE layers need it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moebius::checkpoint {

// config.json of a model with all its layers.  Throws InvalidArgument with the known names.
nlohmann::json preset_config(const std::string& preset);

// The same with `num_layers` layers, all of them MoE layers, quantized as make_model's `quant`
// says. num_layers 0: what the preset makes by default (tiny ones: all, others: one). Throws
// InvalidArgument (names, number of layers) or Unsupported (quant of this family), with the reason.
nlohmann::json synthetic_config(const std::string& preset,
                                int64_t num_layers,
                                const std::string& quant);

}  // namespace moebius::checkpoint
