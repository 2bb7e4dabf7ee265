// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Very small configurations of every family and every stored format.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/make_model.h"
#include "tests/temp_dir.h"

namespace moebius::testing {

struct SmallModel {
  std::string name;
  nlohmann::json config;
};

inline void PrintTo(const SmallModel& model, std::ostream* out) {
  *out << model.name;
}

nlohmann::json small_quantization(const std::string& quant);

// Formats that are stored by modules, so that every family with such modules has them.
const std::vector<std::string>& other_small_quantizations();

std::vector<SmallModel> small_models();

nlohmann::json small_config(std::string_view name);

// Writes the model with all tensors in one file.
void write_small_model(const nlohmann::json& config, const TempDir& dir);

}  // namespace moebius::testing
