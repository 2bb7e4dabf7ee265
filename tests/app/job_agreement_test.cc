// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes of a job of `moebius run` that were started with different options, settings or files.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

// The lines of the command among those of the launcher.
std::string said_by_moebius(const std::string& text) {
  std::string said;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    if (const std::string line = text.substr(begin, end - begin); line.starts_with("moebius: ")) {
      said += line;
    }
    begin = end;
  }
  return said;
}

// Runs ranks 0 and 1 with `first` and rank 2 with `other`, each of which is settings, "--" and
// options.
CommandResult run_job(const std::string& first, const std::string& other) {
  const auto program = [](const std::string& words) {
    const size_t options = words.find("--");
    return "env MOEBIUS_THREADS=1 " + words.substr(0, options) + " $moebius run --group mpi " +
           words.substr(options);
  };
  return run_shell("exec timeout 60 " MOEBIUS_TEST_MPIEXEC " -np 2 " + program(first) +
                   " : -np 1 " + program(other));
}

struct Difference {
  const char* first;
  const char* other;
  const char* message;
};

TEST(JobAgreement, DifferentOptionsAndSettingsAreRefusedByOneLine) {
  const std::string model = " --model " + tiny_model();
  const Difference differences[] = {
      {"", "--seed 1", "--seed is 0 on rank 0, but 1 on rank 2"},
      {"--tokens 64", "--tokens 65", "--tokens is 64 on rank 0, but 65 on rank 2"},
      {"", "--quant int8_w8a16", "--quant is auto on rank 0, but int8_w8a16 on rank 2"},
      {"", "--all2all high_throughput",
       "--all2all is allgather_reducescatter on rank 0, but high_throughput on rank 2"},
      {"", "--repeat 2", "--repeat is 3 on rank 0, but 2 on rank 2"},
      {"", "--trace /tmp/never_written", "--trace is not given on rank 0, but given on rank 2"},
      {"", "--experts ref", "--experts is not given on rank 0, but ref on rank 2"},
      {"MOEBIUS_EXPERTS=ref ", "", "MOEBIUS_EXPERTS is ref on rank 0, but not given on rank 2"},
      {"MOEBIUS_TIMEOUT_MS=20000 ", "MOEBIUS_TIMEOUT_MS=30000 ",
       "MOEBIUS_TIMEOUT_MS is 20000 on rank 0, but 30000 on rank 2"},
  };
  for (const Difference& d : differences) {
    const CommandResult result = run_job(d.first + model, d.other + model);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_EQ(said_by_moebius(result.err), "moebius: " + std::string(d.message) + "\n");
    EXPECT_EQ(result.out, "");
  }
}

TEST(JobAgreement, DifferentLayersAndModelsAreRefused) {
  const ScratchFolder scratch;
  const std::string two = make_model("--preset tiny --layers 2", scratch / "two");
  const std::string other = make_model("--preset tiny --layers 2 --seed 5", scratch / "other");
  const CommandResult layers = run_job("--layer 0 --model " + two, "--layer 1 --model " + two);
  EXPECT_EQ(layers.exit_code, 2);
  EXPECT_EQ(said_by_moebius(layers.err), "moebius: --layer is 0 on rank 0, but 1 on rank 2\n");
  const CommandResult models = run_job("--model " + two, "--model " + other);
  EXPECT_EQ(models.exit_code, 2);
  const std::string said = said_by_moebius(models.err);
  EXPECT_TRUE(said.starts_with("moebius: --model is " + two + " (content ")) << said;
  EXPECT_NE(said.find(" on rank 0, but " + other + " (content "), std::string::npos) << said;
}

TEST(JobAgreement, CopiesOfAModelAreTheSame) {
  const ScratchFolder scratch;
  const std::string copy = scratch / "copy";
  std::filesystem::copy(tiny_model(), copy);
  const CommandResult result =
      run_job("--model " + tiny_model(), "--model " + copy + " --json " + scratch / "unused");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace moebius::test
