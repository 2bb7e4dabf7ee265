// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/app/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

extern char** environ;

namespace moebius::test {

namespace fs = std::filesystem;

namespace {

int wait_for(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) {
    throw std::runtime_error("waitpid failed");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs the command and throws unless it ends with `exit_code`.
CommandResult run_to_end(const Words& arguments, int exit_code) {
  CommandResult result = run_command(arguments);
  if (result.exit_code != exit_code) {
    throw std::runtime_error(testing::PrintToString(arguments) + " ended with exit code " +
                             std::to_string(result.exit_code) + ", expected " +
                             std::to_string(exit_code) + ": " + result.err + result.out);
  }
  return result;
}

}  // namespace

Words::Words(const char* line) {
  std::istringstream text(line);
  for (std::string word; text >> word;) {
    push_back(word);
  }
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words operator+(Words words, const char* line) {
  return std::move(words) + Words(line);
}

Words operator+(Words words, const std::string& word) {
  words.push_back(word);
  return words;
}

std::string command_path() {
  const char* elsewhere =
      std::getenv("MOEBIUS_COMMAND");  // set where tests run apart from their build
  return elsewhere != nullptr ? elsewhere : MOEBIUS_COMMAND;
}

namespace {

CommandResult run_words(Words words) {
  const ScratchFolder scratch;
  const std::string out = scratch / "out";
  const std::string err = scratch / "err";
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kCreate, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kCreate, 0600);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw std::runtime_error("cannot start " + words.front());
  }
  const int exit_code = wait_for(pid);
  return {exit_code, read_text(out), read_text(err)};
}

}  // namespace

CommandResult run_command(const Words& arguments) {
  return run_words(Words{command_path()} + arguments);
}

CommandResult run_shell(const std::string& line) {
  return run_words({"/bin/sh", "-c", "moebius=" + command_path() + "; " + line});
}

void expect_refused(const Words& arguments,
                    const std::vector<std::string>& fragments,
                    std::source_location where) {
  const testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()),
                                   testing::PrintToString(arguments));
  const CommandResult result = run_command(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.err.rfind("moebius: ", 0), 0u) << result.err;
  EXPECT_EQ(result.err.find(".cc:"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, "");
  for (const std::string& fragment : fragments) {
    EXPECT_NE(result.err.find(fragment), std::string::npos)
        << "no \"" << fragment << "\" in " << result.err;
  }
}

JsonResult run_for_json(const Words& arguments, int exit_code) {
  const ScratchFolder scratch;
  const std::string file = scratch / "told.json";
  JsonResult result{run_to_end(arguments + "--json" + file, exit_code), {}};
  result.json = read_json(file);
  return result;
}

std::vector<nlohmann::json> run_bench(const Words& arguments) {
  const ScratchFolder scratch;
  const std::string file = scratch / "bench.jsonl";
  const CommandResult result = run_to_end("bench" + arguments + "--json" + file, 0);
  EXPECT_EQ(result.out.find("wrong"), std::string::npos) << result.out;
  std::vector<nlohmann::json> cases;
  std::istringstream lines(read_text(file));
  for (std::string line; std::getline(lines, line);) {
    cases.push_back(nlohmann::json::parse(line));
    EXPECT_NE(result.out.find(cases.back()["impl"].get<std::string>()), std::string::npos);
  }
  return cases;
}

bool build_has_page() {
  return run_for_json("info").json["build"]["report_page"] != "no";
}

#ifdef MOEBIUS_TEST_MPIEXEC
void run_processes(int num_processes, const Words& arguments, const std::string& options) {
  std::string line = std::string("timeout 60 " MOEBIUS_TEST_MPIEXEC " ") + options + " -np " +
                     std::to_string(num_processes) + " " + command_path();
  for (const std::string& word : arguments) {
    line += " " + word;
  }
  EXPECT_EQ(std::system((line + " > /dev/null").c_str()), 0) << line;
}
#endif

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path.string());
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json read_json(const fs::path& path) {
  return nlohmann::json::parse(read_text(path));
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

}  // namespace moebius::test
