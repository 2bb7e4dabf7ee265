// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a config.json says about a model that cannot run: values as they stand, under whatever key
// its family has for them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "app/report/report.h"

namespace moebius::app {

struct RawConfig {
  std::string model_type;  // of the part that has experts, as a rule text_config; may be empty
  Json architectures;      // null where a figure is absent
  Json num_layers;
  Json hidden;
  Json num_experts;
  Json intermediate;
  Json topk;
  nlohmann::json quantization;  // quantization_config, or null
  std::string quant_method;     // "none" without it
};

RawConfig read_raw_config(const nlohmann::json& config);

}  // namespace moebius::app
