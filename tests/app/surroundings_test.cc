// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What surrounds the command: limits of the size of files, a working directory that is gone, names
// that would steer a terminal, and files that change while they are read.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>

#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

namespace fs = std::filesystem;

void expect_one_line(const CommandResult& result, int exit_code, const std::string& fragment) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err << result.out;
  EXPECT_TRUE(result.err.starts_with("moebius: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(fragment), std::string::npos)
      << "no \"" << fragment << "\" in " << result.err;
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f;
  });
}

TEST(Surroundings, ALimitOfTheSizeOfFilesIsAnErrorAndLeavesNothing) {
  const ScratchFolder scratch;
  const auto limited = [&](const std::string& arguments) {
    return run_shell("cd " + scratch.path().string() + " && ulimit -f 2 && exec $moebius " +
                     arguments);
  };
  const std::string run = "run --repeat 1 --model " + tiny_model();
  expect_one_line(limited("make-model --preset tiny --output made"), 3, "File too large");
  expect_one_line(limited(run + " --output out.safetensors"), 3,
                  "cannot reserve out.safetensors: File too large");
  expect_one_line(limited(run + " --json told.json"), 3, "told.json: File too large");
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  const CommandResult printed =
      run_shell("ulimit -f 0; exec $moebius " + run + " > " + scratch / "printed");
  EXPECT_EQ(printed.exit_code, 3);
}

TEST(Surroundings, AWorkingDirectoryThatIsGoneOnlyMattersToPathsInIt) {
  const ScratchFolder scratch;
  const auto from_nowhere = [&](const std::string& arguments) {
    return run_shell("mkdir " + scratch / "gone" + " && cd " + scratch / "gone" +
                     " && rmdir ../gone && exec $moebius " + arguments);
  };
  const std::string run = "run --repeat 1 --model " + tiny_model();
  for (const std::string& arguments :
       {std::string("info"), std::string("plan --preset tiny"), run,
        run + " --output " + scratch / "out" + " --json " + scratch / "json"}) {
    const CommandResult result = from_nowhere(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << ": " << result.err;
  }
  EXPECT_TRUE(fs::exists(scratch / "out"));
  const std::string gone = ": the working directory: No such file or directory";
  expect_one_line(from_nowhere(run + " --output x"), 2, "--output x" + gone);
  expect_one_line(from_nowhere(run + " --json x --trace y"), 2, "--json x" + gone);
  expect_one_line(from_nowhere("plan --preset tiny --json x"), 2, "--json x" + gone);
  expect_one_line(from_nowhere("make-model --preset tiny --output x/y"), 2, "--output x/y" + gone);
  expect_one_line(from_nowhere("run --model x"), 2, "No such file or directory");
}

TEST(Surroundings, NamesDoNotSteerTheTerminal) {
  const std::string evil =
      "a\x1b[2J\x1b]0;title\x07\r\n\x9b"
      "b";
  const std::string shown = R"(a\x1b[2J\x1b]0;title\x07\x0d\x0a\x9bb)";
  const ScratchFolder scratch;
  const std::string model = scratch / evil;
  fs::copy(tiny_model(), model);
  const std::string input = scratch / "input.safetensors";
  const std::string name = "x\x1b[31m";
  write_safetensors(input, {{name, Tensor::zeros({2, 256}, DType::kBF16)}});
  const Words run = Words{"run", "--repeat", "1", "--model", model, "--input", input};

  for (const Words& words : {run, Words{"info", "--model", model}}) {
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(has_control_characters(result.out)) << result.out;
    EXPECT_NE(result.out.find(shown), std::string::npos) << result.out;
  }
  EXPECT_NE(run_command(run).out.find(R"(x\x1b[31m)"), std::string::npos);

  for (const Words& words :
       {run + "--layer 99", run + "--input-tensor" + name + "--quant" + evil,
        run + "--input-tensor" + evil, run + "--output" + scratch / (evil + "no/x"),
        Words{"run", "--model", scratch / (evil + "c")}, Words{"run", "--" + evil}, Words{evil},
        Words{"make-model", "--preset", evil, "--output", scratch / "y"},
        Words{"plan", "--preset", "tiny", "--machine", evil},
        Words{"bench", "quant", "--problem", evil}, Words{"verify", "--problem", evil}}) {
    const CommandResult result = run_command(words);
    EXPECT_FALSE(has_control_characters(result.err)) << result.err;
    expect_one_line(result, 2, shown.substr(0, 8));
  }
}

// The layer reads its input where the file is mapped, in every call.
TEST(Surroundings, AFileThatIsTruncatedDuringTheRunIsNamed) {
  const ScratchFolder scratch;
  const std::string input = scratch / "input\x1b.safetensors";
  write_safetensors(input, {{"x", Tensor::zeros({64, 256}, DType::kBF16)}});
  const std::string pid_file = scratch / "pid";
  auto running = std::async(std::launch::async, [&] {
    return run_shell("echo $$ > " + pid_file + "; exec $moebius run --repeat 1000000 --model " +
                     tiny_model() + " --input " + scratch / "input*");
  });
  const auto has_mapped = [&] {
    const std::string pid = fs::exists(pid_file) ? read_text(pid_file) : "";
    return !pid.empty() &&
           read_text("/proc/" + pid.substr(0, pid.find('\n')) + "/maps").find(scratch / "input") !=
               std::string::npos;
  };
  while (!has_mapped() &&
         running.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
  }
  fs::resize_file(input, 0);
  const CommandResult result = running.get();
  expect_one_line(result, 3, R"(/input\x1b.safetensors was truncated while it was read)");
}

}  // namespace
}  // namespace moebius::test
