// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The built command as a process, and scratch folders to run it in.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/temp_dir.h"

namespace moebius::test {

struct CommandResult {
  int exit_code = -1;  // 128 + signal when killed
  std::string out;
  std::string err;
};

std::string command_path();

// Runs `moebius arguments...` and waits for it.
CommandResult run_command(const std::vector<std::string>& arguments);

// Its files by names as a command line has them.
class ScratchFolder : public TempDir {
 public:
  std::string operator/(const std::string& name) const { return (path() / name).string(); }
};

nlohmann::json read_json(const std::filesystem::path& path);
std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace moebius::test
