// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These helpers run the built command as a process, in scratch folders, and read what it wrote.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <source_location>
#include <string>
#include <vector>

#include "tests/temp_dir.h"

namespace moebius::test {

// The words of a command line.  A string literal is split at its blanks; a std::string, such as a
// path, is one word.
class Words : public std::vector<std::string> {
 public:
  Words() = default;
  Words(std::initializer_list<std::string> words) : vector(words) {}
  Words(const char* line);  // NOLINT(google-explicit-constructor): literals stand for words
};
Words operator+(Words words, const Words& more);
Words operator+(Words words, const char* line);
Words operator+(Words words, const std::string& word);

struct CommandResult {
  int exit_code = -1;  // 128 + signal when killed
  std::string out;
  std::string err;
};

std::string command_path();

// Runs `moebius arguments...` and waits for it.
CommandResult run_command(const Words& arguments);

// Runs a line of the shell, in which $moebius is the command's path.
CommandResult run_shell(const std::string& line);

// Runs a command that prints one line on stderr and nothing else, and ends with exit code 2.  The
// test fails where it does not, or where the line lacks one of the fragments.
void expect_refused(const Words& arguments,
                    const std::vector<std::string>& fragments,
                    std::source_location where = std::source_location::current());

struct JsonResult : CommandResult {
  nlohmann::json json;
};
// Runs the command with --json FILE and reads the file.  Throws std::runtime_error with what the
// command printed where the exit code is not `exit_code`.
JsonResult run_for_json(const Words& arguments, int exit_code = 0);
// Runs `moebius bench arguments...` likewise: one JSON object per case.
std::vector<nlohmann::json> run_bench(const Words& arguments);

// Whether the command was built with the page of `run --report`.
bool build_has_page();

// Runs the command as a job of MPI processes and fails the test where the job fails or takes more
// than a minute.  Only in a build with MPI.
void run_processes(int num_processes, const Words& arguments, const std::string& options = "");

// A folder whose files are named as a command line names them.
class ScratchFolder : public TempDir {
 public:
  std::string operator/(const std::string& name) const { return (path() / name).string(); }
};

nlohmann::json read_json(const std::filesystem::path& path);
std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace moebius::test
