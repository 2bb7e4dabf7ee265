// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes a checkpoint with random weights for any config.json; make_model() does it for presets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moebius::checkpoint {

// Writes the MoE blocks of all MoE layers, and `config` itself.  Beyond max_file_bytes it starts
// another file and writes an index.  `label` names the configuration in messages.  The random bits
// depend on seed and tensor names only.  Returns the number of bytes written.  Throws
// InvalidArgument or Unsupported (the configuration) or Error (the disk), and then leaves nothing
// behind.
int64_t write_model(const nlohmann::json& config,
                    const std::string& label,
                    uint64_t seed,
                    const std::filesystem::path& directory,
                    int64_t max_file_bytes);

}  // namespace moebius::checkpoint
