// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Presets: the published config.json of real models, as far as MoE layers need it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moebius::checkpoint {

// The config.json of a model with all its layers.  Throws InvalidArgument listing the known names.
nlohmann::json preset_config(const std::string& preset);

// The same with num_layers layers, all of them MoE layers, quantized as the `quant` of make_model()
// says.  num_layers 0 stands for all layers of a tiny preset and one layer of another.  Throws
// InvalidArgument (names, number of layers) or Unsupported (a quant that the family does not have),
// with the reason.
nlohmann::json synthetic_config(const std::string& preset,
                                int64_t num_layers,
                                const std::string& quant);

}  // namespace moebius::checkpoint
