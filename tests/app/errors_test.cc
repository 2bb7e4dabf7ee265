// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Bad usage and bad input: exit code 2, one line that names what is wrong, nothing written.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "moebius/device.h"
#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius {
namespace {

using test::CommandResult;
using test::read_json;
using test::read_text;
using test::run_command;
using test::ScratchFolder;
using test::tiny_model;
using test::write_text;
namespace fs = std::filesystem;

// `fragments` must all be in the one line.
void expect_refused(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& fragments) {
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

// A copy of the tiny model that a test may damage.
class DamagedModel : public testing::Test {
 protected:
  DamagedModel() : folder_(scratch_ / "model") { fs::copy(tiny_model(), folder_); }

  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  void edit_config(const std::string& field, const nlohmann::json& value) {
    auto config = read_json(file("config.json"));
    config[field] = value;
    write_text(file("config.json"), config.dump());
  }

  // Rewrites the weights; `edit` gets every tensor by name and may replace it.
  template <typename Edit>
  void edit_tensors(Edit edit) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    {
      const Safetensors before(file("model.safetensors"));
      for (const std::string& name : before.names()) {
        Tensor tensor = before.tensor(name).clone();
        if (edit(name, tensor)) {
          tensors.emplace_back(name, tensor);
        }
      }
    }
    write_safetensors(file("model.safetensors"), tensors);
  }

  void expect_run_refused(const std::vector<std::string>& fragments) {
    const std::string output = scratch_ / "out.safetensors";
    const std::string json = scratch_ / "out.json";
    expect_refused({"run", "--model", folder_, "--output", output, "--json", json}, fragments);
    // Nothing written, not even a temporary file.
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()), 1);
  }

  ScratchFolder scratch_;
  std::string folder_;
};

bool is_gate(const std::string& name) {
  return name.ends_with(".gate.weight") || name.ends_with(".router.weight");
}

TEST(Usage, UnknownOptionsAndValuesAreRefused) {
  expect_refused({}, {"subcommand"});
  expect_refused({"fly"}, {"fly"});
  expect_refused({"run"}, {"--model"});
  expect_refused({"run", "--model", tiny_model(), "--toekns", "3"}, {"--toekns"});
  expect_refused({"run", "--model", tiny_model(), "--tokens", "many"},
                 {"--tokens: many is no whole number"});
  expect_refused({"run", "--model", tiny_model(), "--tokens", "0"}, {"--tokens", "0"});
  expect_refused({"run", "--model", tiny_model(), "--repeat", "-1"}, {"--repeat", "-1"});
  expect_refused({"run", "--model", tiny_model(), "--device", "tpu"}, {"--device", "tpu"});
  expect_refused({"run", "--model", tiny_model(), "--format", "ragged"}, {"--format", "ragged"});
  expect_refused({"run", "--model", tiny_model(), "--quant", "fp9"}, {"fp9"});
  expect_refused({"run", "--model", tiny_model(), "--experts", "magic"}, {"magic", "ref"});
  expect_refused({"run", "--model", tiny_model(), "--layer", "99"}, {"--layer 99"});
  expect_refused({"run", "--model", tiny_model(), "--input-tensor", "x"}, {"--input"});
  expect_refused({"run", "--model", tiny_model(), "--input", "x", "--tokens", "5"}, {"--input"});
  expect_refused({"make-model", "--preset", "tiny"}, {"--output"});
  expect_refused({"bench", "poetry"}, {"poetry"});
  expect_refused({"bench", "quant", "--problem", "nothing"}, {"nothing"});
  expect_refused({"bench", "quant", "--ranks", "2"}, {"--ranks 2", "quant"});
  expect_refused({"bench", "quant", "--device", "cuda"}, {"--device cuda", "quant"});
  expect_refused({"bench", "experts", "--iterations", "3"}, {"--iterations", "--device cuda"});
  expect_refused({"bench", "experts", "--device", "cuda", "--sms", "8"}, {"--sms", "dispatch"});
  expect_refused({"bench", "dispatch", "--hidden", "64"}, {"--hidden", "--device cuda"});
  expect_refused({"bench", "dispatch", "--device", "cuda", "--mode", "ht,mt"}, {"--mode", "mt"});
  expect_refused({"bench", "dispatch", "--device", "cuda", "--microbatches", "2"},
                 {"--microbatches", "bench layer"});
  expect_refused({"bench", "layer", "--preset", "tiny", "--all2all", "low_latency"},
                 {"--all2all", "--device cuda"});
  expect_refused({"bench", "layer"}, {"--preset"});
  expect_refused({"bench", "layer", "--preset", "poetry"}, {"poetry", "qwen3-30b-a3b"});
  expect_refused({"bench", "layer", "--preset", "tiny", "--quant", "prose"}, {"prose", "nvfp4"});
  expect_refused({"bench", "layer", "--preset", "tiny", "--tokens", "1,0"}, {"0"});
}

TEST(Usage, MisspeltOptionsAreNamedEvenWhereOneIsMissing) {
  expect_refused({"--bogus"}, {"--bogus"});
  expect_refused({"run", "--mod", "x"}, {"--mod "});
  expect_refused({"make-model", "--prest=tiny"}, {"--prest "});
}

TEST(Usage, EmptyValuesAreRefused) {
  for (const std::string option : {"--input", "--output", "--json", "--experts"}) {
    expect_refused({"run", "--model", tiny_model(), option, ""}, {option, "empty"});
  }
  expect_refused({"run", "--model", ""}, {"--model", "empty"});
  expect_refused({"bench", "quant", "--problem", ""}, {"--problem", "empty"});
  for (const std::string list : {"1,", ",1", "1,,2", ","}) {
    expect_refused({"bench", "layer", "--preset", "tiny", "--tokens", list},
                   {"--tokens: " + list + " has an empty value"});
    expect_refused({"bench", "layer", "--preset", "tiny", "--tokens=" + list}, {"--tokens: "});
  }
  expect_refused({"bench", "dispatch", "--device", "cuda", "--sms", "8,"}, {"--sms: 8, has"});
}

TEST(Usage, ListsEndWithTheirWord) {
  expect_refused({"bench", "--tokens", "1,8", "layer", "--preset", "tiny", "--quant", "prose"},
                 {"quant is prose"});
}

TEST(Usage, ThreadsThatAreGivenReplaceTheSetting) {
  const std::string model = tiny_model();  // made without the setting
  setenv("MOEBIUS_THREADS", "many", 1);
  const CommandResult result =
      run_command({"run", "--model", model, "--repeat", "1", "--threads", "2"});
  expect_refused({"run", "--model", model}, {"MOEBIUS_THREADS"});
  unsetenv("MOEBIUS_THREADS");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// As after a variable of the shell that was not set: --output $NAME --check.
TEST(Usage, ValuesThatAreOptionsAreRefused) {
  for (const std::string option : {"--output", "--input", "--json", "--trace", "--report"}) {
    expect_refused({"run", "--model", tiny_model(), option, "--check"},
                   {option + ": is followed by --check, expected FILE", "(a file of that name: "});
  }
  expect_refused({"run", "--model", "--check"},
                 {"--model: ", "--check, expected DIR", "./--check"});
  for (const std::string option : {"--quant", "--experts", "--device"}) {
    expect_refused({"run", "--model", tiny_model(), option, "--check"},
                   {option + ": is followed by --check, expected "});
  }
  expect_refused({"run", "--model", tiny_model(), "--tokens", "--check"},
                 {"--tokens: --check is no"});
  EXPECT_FALSE(fs::exists("--check"));
}

TEST(Usage, NumbersAreDecimalAndInRange) {
  for (const std::string seed : {"-1", "18446744073709551616", "0x10", "1e3"}) {
    expect_refused({"run", "--model", tiny_model(), "--seed", seed}, {"--seed", seed});
    expect_refused({"make-model", "--preset", "tiny", "--output", "/nowhere/x", "--seed", seed},
                   {"--seed", seed});
  }
  expect_refused({"run", "--model", tiny_model(), "--tokens", "010"}, {"--tokens", "010"});
  expect_refused({"bench", "quant", "--min-time", "nan"}, {"--min-time", "nan"});
  expect_refused({"plan", "--preset", "tiny", "--skew", "nan"}, {"--skew", "nan"});
  const CommandResult largest = run_command({"run", "--model", tiny_model(), "--tokens", "1",
                                             "--repeat", "1", "--seed", "18446744073709551615"});
  EXPECT_EQ(largest.exit_code, 0) << largest.err;
}

TEST(Usage, RanksThatContradictEachOtherAreRefused) {
  const auto refused = [](std::vector<std::string> option, const std::vector<std::string>& parts) {
    option.insert(option.begin(), {"run", "--model", tiny_model()});
    expect_refused(option, parts);
  };
  refused({"--ranks", "1", "--dp", "2"}, {"--dp 2", "1 ranks"});
  refused({"--ranks", "1", "--tp", "3"}, {"--tp 3", "1 ranks"});
  refused({"--ranks", "4", "--dp", "1"}, {"--dp 1", "4 ranks"});
  refused({"--tp", "65536", "--dp", "65536"}, {"4294967296 ranks", "1024"});
  refused({"--ranks", "2000", "--no-ep"}, {"2000 ranks", "1024"});
  refused({"--ranks", "17"}, {"17 ranks", "experts", "--no-ep"});
}

TEST(Usage, OptionsThatWouldBePassedOverAreRefused) {
  expect_refused({"verify", "--markdown", "--json", "x"}, {"--json", "--markdown"});
  expect_refused({"info", "--markdown", "--model", tiny_model()}, {"--model", "--markdown"});
  for (const std::string option : {"--preset", "--quant"}) {
    expect_refused({"bench", "quant", option, "x"}, {option, "bench layer"});
  }
  expect_refused({"bench", "dispatch", "--tokens", "3"}, {"--tokens", "bench layer"});
  expect_refused({"bench", "layer", "--preset", "tiny", "--problem", "x"}, {"--problem"});
  for (const std::string stage : {"experts", "dispatch", "layer"}) {
    expect_refused({"bench", stage, "--device", "cuda", "--min-time", "1"},
                   {"--min-time", "CPUs", "--iterations"});
  }
}

TEST(Usage, SchemesAreNamedAsTheCommandTakesThem) {
  expect_refused({"bench", "layer", "--preset", "tiny", "--quant", "auto"},
                 {"auto, expected one of none, fp8_w8a8"});
  expect_refused({"plan", "--preset", "tiny", "--quant", "prose"}, {"auto, none, fp8, int8, int4"});
}

TEST(Usage, GroupsAndDevicesThatDoNotGoTogether) {
  const auto refused = [](const std::vector<std::string>& option,
                          const std::vector<std::string>& parts) {
    std::vector<std::string> arguments = {"run", "--model", "/nowhere"};
    arguments.insert(arguments.end(), option.begin(), option.end());
    expect_refused(arguments, parts);
  };
  refused({"--group", "nccl"}, {"--group nccl", "--device cuda"});
  refused({"--group", "mpi", "--device", "cuda"}, {"--device cuda", "--group nccl", "mpi"});
  refused({"--graph"}, {"--graph", "--device cuda"});
  refused({"--comm-sms", "8"}, {"--comm-sms 8", "--device cuda"});
  refused({"--combine-parts", "2"}, {"--combine-parts 2", "--device cuda"});
  refused({"--early-rows", "2"}, {"--early-rows 2", "--device cuda"});
  refused({"--router-sums", "tensor"}, {"--router-sums tensor", "--device cuda"});
  refused({"--capacity", "8"}, {"--capacity 8", "--device cuda"});
}

// Each would do the whole run and write the same files.
TEST(Usage, ProcessesOfALauncherThatWouldBeNoRanks) {
  const std::vector<std::string> run = {"run", "--model", tiny_model(), "--repeat", "1"};
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
  const std::vector<std::string> run = {"run", "--model", tiny_model(), "--repeat", "1"};
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
  // Before the model is looked at.
  for (const char* group : {"threads", "nccl"}) {
    expect_refused({"run", "--model", "/nowhere", "--device", "cuda", "--group", group},
                   {"cuda:0: "});
  }
  expect_refused({"bench", "layer", "--preset", "tiny", "--device", "cuda"}, {"cuda:0: "});
}

TEST(Usage, DefaultsOfLaterOptionsAreAccepted) {
  const CommandResult result = run_command({"run",
                                            "--model",
                                            tiny_model(),
                                            "--device",
                                            "cpu",
                                            "--group",
                                            "threads",
                                            "--ranks",
                                            "1",
                                            "--ranks-per-node",
                                            "1",
                                            "--tp",
                                            "1",
                                            "--dp",
                                            "1",
                                            "--no-ep",
                                            "--all2all",
                                            "none",
                                            "--microbatches",
                                            "1",
                                            "--repeat",
                                            "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Usage, HelpAndVersionSucceed) {
  for (const std::string command : {"run", "make-model", "bench", "verify", "info"}) {
    const CommandResult result = run_command({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("--"), std::string::npos);
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(run_command({"--version"}).exit_code, 0);
}

TEST(Usage, PresetsAndFormatsThatDoNotExistAreRefusedBeforeWriting) {
  const ScratchFolder scratch;
  expect_refused({"make-model", "--preset", "mega", "--output", scratch / "m"}, {"mega"});
  expect_refused({"make-model", "--preset", "tiny", "--quant", "int3", "--output", scratch / "m"},
                 {"int3"});
  EXPECT_FALSE(fs::exists(scratch / "m"));
}

TEST(Output, UnwritablePlacesAreRefusedFirst) {
  const ScratchFolder scratch;
  expect_refused({"run", "--model", "/nowhere", "--output", scratch / "no/out"},
                 {"--output", "no/out", "no folder"});
  expect_refused({"run", "--model", "/nowhere", "--json", scratch / "no/json"}, {"--json"});
  expect_refused({"run", "--model", "/nowhere", "--output", scratch.path().string()},
                 {"is a folder"});
  expect_refused({"run", "--model", "/nowhere", "--json", "/dev/null"}, {"--json /dev/null"});
  expect_refused({"run", "--model", "/nowhere", "--json", "/proc/self/fd/1"}, {"a device"});
  expect_refused({"make-model", "--preset", "tiny", "--output", "/proc/x"}, {"--output /proc/x"});
  expect_refused({"make-model", "--preset", "tiny", "--output", tiny_model() + "/config.json"},
                 {"config.json"});
  expect_refused({"run", "--model", "/nowhere", "--output", scratch / "x", "--json", scratch / "x"},
                 {"--json and --output"});
  expect_refused({"run", "--model", "/nowhere", "--report", scratch / "no/page"}, {"--report"});
  expect_refused({"run", "--model", "/nowhere", "--report", scratch / "x", "--json", scratch / "x"},
                 {"--report and --json"});
  if (geteuid() != 0) {  // root may write anywhere
    fs::create_directory(scratch / "closed");
    chmod((scratch / "closed").c_str(), 0500);
    expect_refused({"run", "--model", "/nowhere", "--output", scratch / "closed/out"},
                   {"cannot write"});
  }
}

// As /dev/stdout is one, which a rename would replace.
TEST(Output, LinksAreFollowed) {
  const ScratchFolder scratch;
  const std::string link = scratch / "link.json";
  fs::create_symlink("file.json", link);
  const CommandResult result =
      run_command({"run", "--model", tiny_model(), "--repeat", "1", "--json", link});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(read_json(scratch / "file.json").is_object());
  fs::remove(link);
  fs::create_symlink("/proc/self/fd/1", link);
  expect_refused({"run", "--model", tiny_model(), "--json", link}, {"--json", "a device"});
  EXPECT_TRUE(fs::is_symlink(link));
  expect_refused({"run", "--model", tiny_model(), "--json", "/dev/fd/1"},
                 {"/dev/fd/1", "a device"});
}

TEST(Output, LinksToWhatIsNotThereAreFollowed) {
  const ScratchFolder scratch;
  const std::string link = scratch / "link.json";
  fs::create_symlink("file.json", link);
  const std::vector<std::string> run = {"run", "--model", tiny_model(), "--json"};
  const auto with = [&](const std::vector<std::string>& more) {
    auto words = run;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(with({scratch / "file.json", "--trace", link}), {"--trace and --json are both"});
  const std::string unread = fs::absolute(tiny_model() + "/hf_quant_config.json").string();
  fs::create_symlink(unread, scratch / "model.json");
  expect_refused(with({scratch / "model.json"}), {"model.json", "read"});
  fs::create_symlink("circle.json", scratch / "circle.json");
  expect_refused(with({scratch / "circle.json"}), {"circle.json", "a link that leads to itself"});
  EXPECT_TRUE(fs::is_symlink(scratch / "circle.json"));
}

TEST(Output, NamesMayBeAsLongAsNamesCanBe) {
  const ScratchFolder scratch;
  const std::string file = scratch / std::string(255, 'n');
  const CommandResult result = run_command({"plan", "--preset", "tiny", "--json", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(read_json(file).is_object());
  expect_refused({"plan", "--preset", "tiny", "--json", scratch / std::string(256, 'n')},
                 {"--json", "File name too long"});
}

TEST(Output, WhatIsReadIsNotReplaced) {
  const ScratchFolder scratch;
  const std::string input = scratch / "in.safetensors";
  const std::string output = scratch / "out.safetensors";
  ASSERT_EQ(
      run_command({"run", "--model", tiny_model(), "--repeat", "1", "--output", input}).exit_code,
      0);
  const std::string before = read_text(input);
  expect_refused({"run", "--model", tiny_model(), "--input", input, "--output", input},
                 {"--output " + input, "read"});
  EXPECT_EQ(read_text(input), before);
  // A name that is not there yet would be read by the next run.
  for (const std::string name : {"config.json", "hf_quant_config.json", "model.safetensors",
                                 "model.safetensors.index.json"}) {
    const std::string file = tiny_model() + "/" + name;
    const bool exists = fs::exists(file);
    const std::string contents = exists ? read_text(file) : "";
    for (const std::string command : {"run", "info", "plan"}) {
      expect_refused({command, "--model", tiny_model(), "--json", file},
                     {"--json " + file, "read"});
    }
    EXPECT_EQ(fs::exists(file), exists);
    EXPECT_EQ(exists ? read_text(file) : "", contents);
  }
  const std::string folder = scratch / "folder";
  fs::create_directory(folder);
  fs::rename(input, folder + "/model.safetensors");
  expect_refused({"run", "--model", tiny_model(), "--input", folder, "--output",
                  folder + "/model.safetensors"},
                 {folder, "a folder"});
  EXPECT_EQ(read_text(folder + "/model.safetensors"), before);
  const std::string machine = scratch / "machine.json";
  write_text(machine, "{}");
  expect_refused({"plan", "--preset", "tiny", "--machine", machine, "--json", machine},
                 {"--json " + machine, "read"});
  EXPECT_EQ(read_text(machine), "{}");
  // As downloads keep them: names that link to contents.
  const std::string snapshot = scratch / "snapshot";
  fs::create_directory(snapshot);
  for (const std::string name : {"config.json", "model.safetensors"}) {
    fs::copy(tiny_model() + "/" + name, scratch / ("blob-" + name));
    fs::create_symlink("../blob-" + name, snapshot + "/" + name);
  }
  for (const std::string& place :
       {snapshot + "/model.safetensors", scratch / "blob-model.safetensors"}) {
    expect_refused({"run", "--model", snapshot, "--output", place}, {"--output " + place, "read"});
  }
}

TEST(Output, ShardsAreNotReplaced) {
  const ScratchFolder scratch;
  const std::string folder = scratch / "model";
  fs::copy(tiny_model(), folder);
  fs::rename(folder + "/model.safetensors", folder + "/part-1");
  nlohmann::json index;
  for (const std::string& name : Safetensors(folder + "/part-1").names()) {
    index["weight_map"][name] = "part-1";
  }
  write_text(folder + "/model.safetensors.index.json", index.dump());
  for (const std::string command : {"run", "info", "plan"}) {
    expect_refused({command, "--model", folder, "--json", folder + "/part-1"},
                   {"--json " + folder + "/part-1", "read"});
  }
  EXPECT_EQ(run_command({"info", "--model", folder, "--json", folder + "/info.json"}).exit_code, 0);
}

TEST(Output, AnotherModelIsNotReplaced) {
  const ScratchFolder scratch;
  const std::string folder = scratch / "model";
  fs::copy(tiny_model(), folder);
  auto config = read_json(folder + "/config.json");
  config["rope_theta"] = 12345;
  write_text(folder + "/config.json", config.dump());
  const std::string weights = read_text(folder + "/model.safetensors");
  expect_refused({"make-model", "--preset", "tiny", "--output", folder},
                 {"config.json", "another model"});
  EXPECT_EQ(read_text(folder + "/model.safetensors"), weights);
}

TEST(Output, ThatCannotBePrintedIsAnError) {
  for (const char* command : {"run --help", "info --markdown"}) {
    const std::string line =
        fmt::format("{} {} > /dev/full 2> /dev/null", test::command_path(), command);
    const int status = std::system(line.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 3) << command;
  }
}

TEST(Output, AReportNeedsThePageInTheBuild) {
  const ScratchFolder scratch;
  ASSERT_EQ(run_command({"info", "--json", scratch / "info.json"}).exit_code, 0);
  const bool has_page = read_json(scratch / "info.json")["build"]["report_page"] != "no";
  expect_refused({"run", "--model", "/nowhere", "--report", scratch / "page.html"},
                 {has_page ? "/nowhere" : "this build is without the page"});
  EXPECT_FALSE(fs::exists(scratch / "page.html"));
}

TEST(Input, FilesThatDoNotFitAreRefused) {
  const ScratchFolder scratch;
  const int64_t hidden = read_json(tiny_model() + "/config.json")["hidden_size"];
  const std::string file = scratch / "in.safetensors";
  const auto refused = [&](const std::vector<std::string>& fragments,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"run", "--model", tiny_model(), "--input", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(arguments, fragments);
  };
  refused({file});  // no such file

  expect_refused({"run", "--model", tiny_model(), "--input", tiny_model() + "/config.json"},
                 {"config.json: is JSON, expected FILE.safetensors"});

  write_text(file, "not a safetensors file");
  refused({file});

  const Tensor good = Tensor::zeros({3, hidden}, DType::kF32);
  write_safetensors(file, {{"x", good}, {"y", good}});
  refused({file, "2 tensors", "--input-tensor"});
  refused({file, "z", "missing"}, {"--input-tensor", "z"});

  write_safetensors(file, {{"x", Tensor::zeros({3, hidden + 1}, DType::kF32)}});
  refused({file, "x", fmt::format("[3, {}]", hidden + 1), std::to_string(hidden)});
  write_safetensors(file, {{"x", Tensor::zeros({hidden}, DType::kF32)}});
  refused({file, "x", fmt::format("[{}]", hidden)});
  write_safetensors(file, {{"x", Tensor::zeros({3, hidden}, DType::kI32)}});
  refused({file, "x", "I32", "BF16"});

  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Tensor tensor = good.clone();
    set_float(tensor, 2 * hidden + 7, bad);
    write_safetensors(file, {{"x", tensor}});
    refused({file, "x", "token 2", "column 7"});
  }
  set_float(good, 2 * hidden + 7, 3.4e38f);  // f32 has it, the model's bf16 has not
  write_safetensors(file, {{"x", good}});
  refused({"x is 3.4e+38 at token 2, column 7, which is inf in the model's bf16"});
  set_float(good, 2 * hidden + 7, 0);

  write_safetensors(file, {{"x", good}});
  fs::resize_file(file, fs::file_size(file) - 4);
  refused({file});
}

TEST(Model, FoldersWithoutAModelAreRefused) {
  const ScratchFolder scratch;
  expect_refused({"run", "--model", scratch / "none"}, {"none"});
  expect_refused({"run", "--model", scratch.path().string()}, {"config.json"});
  expect_refused({"info", "--model", scratch.path().string()}, {"config.json"});
}

TEST_F(DamagedModel, MissingWeightsAreNamed) {
  fs::remove(file("model.safetensors"));
  expect_run_refused({"model.safetensors"});
}

TEST_F(DamagedModel, MissingShardIsNamed) {
  fs::rename(file("model.safetensors"), file("model-00001-of-00002.safetensors"));
  nlohmann::json map;
  for (const std::string& name : Safetensors(file("model-00001-of-00002.safetensors")).names()) {
    map[name] =
        is_gate(name) ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
  }
  write_text(file("model.safetensors.index.json"), nlohmann::json{{"weight_map", map}}.dump());
  expect_run_refused({"model-00002-of-00002.safetensors"});
}

TEST_F(DamagedModel, TruncatedWeightsAreNamed) {
  fs::resize_file(file("model.safetensors"), fs::file_size(file("model.safetensors")) / 2);
  expect_run_refused({"model.safetensors"});
}

TEST_F(DamagedModel, MissingTensorIsNamed) {
  edit_tensors([](const std::string& name, Tensor&) { return !is_gate(name); });
  expect_run_refused({folder_, "gate.weight", "missing"});
}

TEST_F(DamagedModel, ShapeThatContradictsTheConfigIsNamedWithBothValues) {
  const int64_t hidden = read_json(file("config.json"))["hidden_size"];
  edit_config("hidden_size", hidden * 2);
  expect_run_refused({"safetensors", std::to_string(hidden), std::to_string(hidden * 2)});
}

// Before there is input for it, which would take minutes and gigabytes.
TEST_F(DamagedModel, HugeSizesAreRefusedAtOnce) {
  edit_config("hidden_size", int64_t{1} << 28);
  const auto start = std::chrono::steady_clock::now();
  expect_run_refused({"safetensors", "config.json makes it [16, 268435456]"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(DamagedModel, BrokenConfigIsNamed) {
  write_text(file("config.json"), "{\"model_type\": ");
  expect_run_refused({"config.json"});
}

TEST_F(DamagedModel, UnknownFamilyIsNamed) {
  edit_config("model_type", "perceptron");
  expect_run_refused({"config.json", "perceptron"});
}

TEST_F(DamagedModel, UnknownQuantizationIsNamed) {
  edit_config("quantization_config", {{"quant_method", "ternary"}});
  expect_run_refused({"ternary"});
}

TEST_F(DamagedModel, MoreSelectionsThanExpertsAreRefused) {
  edit_config("num_experts_per_tok", 1000);
  expect_run_refused({"1000"});
}

TEST_F(DamagedModel, NanInTheRouterIsNamed) {
  edit_tensors([](const std::string& name, Tensor& tensor) {
    if (is_gate(name)) {
      set_float(tensor, 5, std::numeric_limits<float>::quiet_NaN());
    }
    return true;
  });
  expect_run_refused({folder_, "layer 0", "gate[0, 5]", "NaN"});
}

TEST_F(DamagedModel, InfinityInTheRouterIsNamed) {
  edit_tensors([](const std::string& name, Tensor& tensor) {
    if (is_gate(name)) {
      set_float(tensor, 5, std::numeric_limits<float>::infinity());
    }
    return true;
  });
  expect_run_refused({folder_, "layer 0", "gate[0, 5] is inf, expected a finite number"});
}

}  // namespace
}  // namespace moebius
