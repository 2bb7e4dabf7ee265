// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Bad usage is refused with exit code 2 and one line that names what is wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "moebius/device.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

TEST(Usage, UnknownOptionsAndValuesAreRefused) {
  expect_refused({}, {"subcommand"});
  expect_refused("fly", {"fly"});
  expect_refused("run", {"--model"});
  expect_refused(run_tiny("--toekns 3"), {"--toekns"});
  expect_refused(run_tiny("--tokens many"), {"--tokens: many is no whole number"});
  expect_refused(run_tiny("--tokens 0"), {"--tokens", "0"});
  expect_refused(run_tiny("--repeat -1"), {"--repeat", "-1"});
  expect_refused(run_tiny("--device tpu"), {"--device", "tpu"});
  expect_refused(run_tiny("--format ragged"), {"--format", "ragged"});
  expect_refused(run_tiny("--quant fp9"), {"fp9"});
  expect_refused(run_tiny("--experts magic"), {"magic", "ref"});
  expect_refused(run_tiny("--layer 99"), {"--layer 99"});
  expect_refused(run_tiny("--input-tensor x"), {"--input"});
  expect_refused(run_tiny("--input x --tokens 5"), {"--input"});
  expect_refused("make-model --preset tiny", {"--output"});
  expect_refused("bench poetry", {"poetry"});
  expect_refused("bench quant --problem nothing", {"nothing"});
  expect_refused("bench quant --ranks 2", {"--ranks 2", "quant"});
  expect_refused("bench quant --device cuda", {"--device cuda", "quant"});
  expect_refused("bench experts --iterations 3", {"--iterations", "--device cuda"});
  for (const char* bench : {"dispatch --device cuda", "experts"}) {
    expect_refused(Words{"bench"} + bench + "--l2-lines read",
                   {"--l2-lines", "bench experts and bench layer with --device cuda"});
  }
  expect_refused("bench experts --device cuda --l2-lines dirty", {"--l2-lines", "dirty", "read"});
  expect_refused("bench experts --device cuda --sms 8", {"--sms", "dispatch"});
  expect_refused("bench dispatch --hidden 64", {"--hidden", "--device cuda"});
  expect_refused("bench dispatch --device cuda --mode ht,mt", {"--mode", "mt"});
  expect_refused("bench dispatch --device cuda --microbatches 2",
                 {"--microbatches", "bench layer"});
  expect_refused("bench layer --preset tiny --all2all low_latency", {"--all2all", "--device cuda"});
  expect_refused("bench layer --preset tiny --device cuda --all2all naive",
                 {"--all2all", "allgather_reducescatter", "high_throughput"});
  expect_refused(run_tiny("--ranks 2 --all2all pplx"), {"--all2all", "pplx", "low_latency"});
  expect_refused(run_tiny("--ranks 2 --all2all deepep"), {"--all2all", "deepep", "none"});
  expect_refused("bench layer", {"--preset"});
  expect_refused("bench layer --preset poetry", {"poetry", "qwen3-30b-a3b"});
  expect_refused("bench layer --preset tiny --quant prose", {"prose", "nvfp4"});
  expect_refused("bench layer --preset tiny --tokens 1,0", {"0"});
}

TEST(Usage, MisspeltOptionsAreNamedEvenWhereOneIsMissing) {
  expect_refused("--bogus", {"--bogus"});
  expect_refused("run --mod x", {"--mod "});
  expect_refused("make-model --prest=tiny", {"--prest "});
}

TEST(Usage, EmptyValuesAreRefused) {
  for (const std::string option : {"--input", "--output", "--json", "--experts"}) {
    expect_refused(run_tiny({option, ""}), {option, "empty"});
  }
  expect_refused({"run", "--model", ""}, {"--model", "empty"});
  expect_refused({"bench", "quant", "--problem", ""}, {"--problem", "empty"});
  for (const std::string list : {"1,", ",1", "1,,2", ","}) {
    expect_refused("bench layer --preset tiny --tokens" + Words{list},
                   {"--tokens: " + list + " has an empty value"});
    expect_refused("bench layer --preset tiny" + Words{"--tokens=" + list}, {"--tokens: "});
  }
  expect_refused("bench dispatch --device cuda --sms 8,", {"--sms: 8, has"});
}

TEST(Usage, ListsEndWithTheirWord) {
  expect_refused("bench --tokens 1,8 layer --preset tiny --quant prose", {"quant is prose"});
}

TEST(Usage, ThreadsThatAreGivenReplaceTheSetting) {
  tiny_model();  // is made without the setting
  setenv("MOEBIUS_THREADS", "many", 1);
  const CommandResult result = run_command(run_tiny("--repeat 1 --threads 2"));
  expect_refused(run_tiny(), {"MOEBIUS_THREADS"});
  unsetenv("MOEBIUS_THREADS");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// `--output $NAME --check` becomes such a command line where NAME is not set in the shell.
TEST(Usage, ValuesThatAreOptionsAreRefused) {
  for (const std::string option : {"--output", "--input", "--json", "--trace", "--report"}) {
    expect_refused(run_tiny({option, "--check"}),
                   {option + ": is followed by --check, expected FILE", "(a file of that name: "});
  }
  expect_refused("run --model --check", {"--model: ", "--check, expected DIR", "./--check"});
  for (const std::string option : {"--quant", "--experts", "--device"}) {
    expect_refused(run_tiny({option, "--check"}), {option + ": is followed by --check, expected "});
  }
  expect_refused(run_tiny("--tokens --check"), {"--tokens: --check is no"});
  EXPECT_FALSE(std::filesystem::exists("--check"));
}

TEST(Usage, NumbersAreDecimalAndInRange) {
  for (const std::string seed : {"-1", "18446744073709551616", "0x10", "1e3"}) {
    expect_refused(run_tiny({"--seed", seed}), {"--seed", seed});
    expect_refused("make-model --preset tiny --output /nowhere/x --seed" + Words{seed},
                   {"--seed", seed});
  }
  expect_refused(run_tiny("--tokens 010"), {"--tokens", "010"});
  expect_refused("bench quant --min-time nan", {"--min-time", "nan"});
  expect_refused("plan --preset tiny --skew nan", {"--skew", "nan"});
  const CommandResult largest =
      run_command(run_tiny("--tokens 1 --repeat 1 --seed 18446744073709551615"));
  EXPECT_EQ(largest.exit_code, 0) << largest.err;
}

TEST(Usage, RanksThatContradictEachOtherAreRefused) {
  expect_refused(run_tiny("--ranks 1 --dp 2"), {"--dp 2", "1 ranks"});
  expect_refused(run_tiny("--ranks 1 --tp 3"), {"--tp 3", "1 ranks"});
  expect_refused(run_tiny("--ranks 4 --tp 3"), {"4 ranks are no multiple"});
  expect_refused(run_tiny("--ranks 4 --dp 1"), {"--dp 1", "4 ranks"});
  expect_refused(run_tiny("--tp 65536 --dp 65536"), {"4294967296 ranks", "1024"});
  expect_refused(run_tiny("--ranks 2000 --no-ep"), {"2000 ranks", "1024"});
  expect_refused(run_tiny("--ranks 17"), {"17 ranks, but", "experts", "--no-ep"});
  expect_refused(run_tiny("--ranks 2 --all2all none"),
                 {"--all2all none: ranks hold the same tokens"});
  expect_refused(run_tiny("--tp 2 --no-ep --all2all high_throughput"),
                 {"without expert parallelism"});
  expect_refused(run_tiny("--ranks 2 --all2all high_throughput --monolithic"), {"monolithic"});
}

TEST(Usage, OptionsThatWouldBePassedOverAreRefused) {
  expect_refused("verify --markdown --json x", {"--json", "--markdown"});
  expect_refused("info --markdown --model" + Words{tiny_model()}, {"--model", "--markdown"});
  expect_refused("bench quant --preset x", {"--preset", "bench layer"});
  expect_refused("bench quant --quant x", {"--quant", "bench layer"});
  expect_refused("bench dispatch --tokens 3", {"--tokens", "bench layer"});
  expect_refused("bench layer --preset tiny --problem x", {"--problem"});
  for (const std::string stage : {"experts", "dispatch", "layer"}) {
    expect_refused(Words{"bench", stage} + "--device cuda --min-time 1",
                   {"--min-time", "CPUs", "--iterations"});
  }
}

TEST(Usage, SchemesAreNamedAsTheCommandTakesThem) {
  expect_refused("bench layer --preset tiny --quant auto",
                 {"auto, expected one of none, fp8_w8a8"});
  expect_refused("plan --preset tiny --quant prose", {"auto, none, fp8, int8, int4"});
}

TEST(Usage, GroupsAndDevicesThatDoNotGoTogether) {
  const Words run = "run --model /nowhere";
  expect_refused(run + "--group nccl", {"--group nccl", "--device cuda"});
  expect_refused(run + "--group mpi --device cuda", {"--device cuda", "--group nccl", "mpi"});
  for (const char* option : {"--graph", "--comm-sms 8", "--combine-parts 2", "--early-rows 2",
                             "--router-sums tensor", "--capacity 8"}) {
    expect_refused(run + option, {option, "--device cuda"});
  }
}

// Each of the processes would do the whole run and write the same files.
TEST(Usage, ProcessesOfALauncherThatWouldBeNoRanks) {
  const Words run = run_tiny("--repeat 1");
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK"}) {
    setenv(name, "2", 1);
    expect_refused(run, {"a launcher started this process", "--group is threads", "--group mpi"});
    const std::string of_one = std::string(name) == "PMIX_RANK" ? "0" : "1";
    setenv(name, of_one.c_str(), 1);
    EXPECT_EQ(run_command(run).exit_code, 0) << name;
    unsetenv(name);
  }
}

TEST(Usage, LogsThatDoNotExistAreRefused) {
  const Words run = run_tiny("--repeat 1");
  for (const char* misspelt : {"debg", "info,dispach", "info,,dispatch"}) {
    setenv("MOEBIUS_LOG", misspelt, 1);
    expect_refused(run, {fmt::format("MOEBIUS_LOG is \"{}\"", misspelt), "debug", "dispatch"});
  }
  setenv("MOEBIUS_LOG", "error,dispatch", 1);
  const CommandResult result = run_command(run);
  unsetenv("MOEBIUS_LOG");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.rfind("dispatch: ", 0), 0u) << result.err;
  EXPECT_EQ(result.err.find('\033'), std::string::npos) << result.err;
}

TEST(Usage, AGpuThatIsMissingIsNamed) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  // The GPU is looked for before the model, which does not exist.
  expect_refused("run --model /nowhere --device cuda --group threads", {"cuda:0: "});
  expect_refused("run --model /nowhere --device cuda --group nccl", {"cuda:0: "});
  expect_refused("bench layer --preset tiny --device cuda", {"cuda:0: "});
}

TEST(Usage, DefaultsOfLaterOptionsAreAccepted) {
  const CommandResult result = run_command(
      run_tiny("--device cpu --group threads --ranks 1 --ranks-per-node 1 --tp 1 --dp 1 "
               "--no-ep --all2all none --microbatches 1 --repeat 1"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Usage, HelpAndVersionSucceed) {
  for (const std::string command : {"run", "make-model", "bench", "verify", "info"}) {
    const CommandResult result = run_command({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("--"), std::string::npos);
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(run_command("--version").exit_code, 0);
}

TEST(Usage, PresetsAndFormatsThatDoNotExistAreRefusedBeforeWriting) {
  const ScratchFolder scratch;
  expect_refused("make-model --preset mega --output" + Words{scratch / "m"}, {"mega"});
  expect_refused("make-model --preset tiny --quant int3 --output" + Words{scratch / "m"}, {"int3"});
  EXPECT_FALSE(std::filesystem::exists(scratch / "m"));
}

}  // namespace
}  // namespace moebius::test
