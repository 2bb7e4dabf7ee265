// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The names of the files of a model folder.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace moebius::checkpoint {

inline constexpr std::string_view kConfigFile = "config.json";
// Older ModelOpt checkpoints keep the quantization in this file.
inline constexpr std::string_view kQuantConfigFile = "hf_quant_config.json";
inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// The paths of all files that a Checkpoint of the folder opens, whether they exist or not.  Throws
// InvalidArgument for an index that cannot be read.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& directory);

}  // namespace moebius::checkpoint
