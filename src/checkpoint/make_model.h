// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint a config.json describes, with random weights; make_model without its presets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moebius::checkpoint {

// Writes the MoE blocks of all MoE layers and `config` itself; beyond max_file_bytes another file
// is started, and an index is written.  `label` names the configuration in messages. The random
// bits depend on seed and tensor names only. Throws InvalidArgument, Unsupported (config), Error
// (disk); nothing is left behind then.  Returns the bytes of the files.
int64_t write_model(const nlohmann::json& config,
                    const std::string& label,
                    uint64_t seed,
                    const std::filesystem::path& directory,
                    int64_t max_file_bytes);

}  // namespace moebius::checkpoint
