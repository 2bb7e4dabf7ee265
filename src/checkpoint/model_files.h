// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The names of the files of a model folder.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::checkpoint {

inline constexpr std::string_view kConfigFile = "config.json";
// Older ModelOpt checkpoints keep the quantization in this file.
inline constexpr std::string_view kQuantConfigFile = "hf_quant_config.json";
inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// The file of a folder that Safetensors opens: the single file or else the index, as transformers
// chooses.  Throws InvalidArgument where there is neither, and says what comes nearest: shards
// without their index, or the snapshot of a hub's cache whose root this is.
std::filesystem::path weights_file(const std::filesystem::path& directory);

// The folder below `directory` that holds the model, where `directory` is a model's root in the
// cache of a hub (refs/main names a folder of snapshots/, whose files are links to blobs/); empty
// where it is not.
std::filesystem::path cached_snapshot(const std::filesystem::path& directory);

// Throws InvalidArgument for the root of a hub's cache, and names the snapshot in it.
void expect_no_cache_root(const std::filesystem::path& directory);

// Describes a file that cannot be found: "is missing", or "is a link to PATH, which is missing" as
// after a download that was interrupted.
std::string missing_file_text(const std::filesystem::path& path);

// The safetensors files of the folder that are not in `used`, by name.
std::vector<std::string> unused_shards(const std::filesystem::path& directory,
                                       const std::vector<std::filesystem::path>& used);

// The paths of all files that a Checkpoint of the folder opens, whether they exist or not.  Throws
// InvalidArgument for an index that cannot be read.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& directory);

}  // namespace moebius::checkpoint
