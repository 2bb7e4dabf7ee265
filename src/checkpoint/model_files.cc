// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_files.h"

#include <system_error>

#include "checkpoint/safetensors_header.h"

namespace moebius::checkpoint {

namespace fs = std::filesystem;

std::vector<fs::path> model_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const std::string_view name : {kConfigFile, kQuantConfigFile, kSingleFile, kIndexFile}) {
    files.push_back(directory / name);
  }
  std::error_code error;
  if (const fs::path index = files.back(); fs::exists(index, error)) {
    for (const auto& [tensor, shard] : read_safetensors_index(index)) {
      if (directory / shard != files.back()) {  // neighbours mostly share a shard
        files.push_back(directory / shard);
      }
    }
  }
  return files;
}

}  // namespace moebius::checkpoint
