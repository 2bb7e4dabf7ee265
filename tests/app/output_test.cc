// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Files that a command is to write: places that cannot be written, or that hold what is read, are
// refused before anything happens.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "moebius/safetensors.h"
#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

namespace fs = std::filesystem;

TEST(Output, UnwritablePlacesAreRefusedFirst) {
  const ScratchFolder scratch;
  const Words run = "run --model /nowhere";
  const Words make = "make-model --preset tiny --output";
  const std::string file = scratch / "x";
  expect_refused(run + "--output" + scratch / "no/out", {"--output", "no/out", "no folder"});
  expect_refused(run + "--json" + scratch / "no/json", {"--json"});
  expect_refused(run + "--output" + scratch.path().string(), {"is a folder"});
  expect_refused(run + "--json /dev/null", {"--json /dev/null"});
  expect_refused(run + "--json /proc/self/fd/1", {"a device"});
  expect_refused(make + "/proc/x", {"--output /proc/x"});
  expect_refused(make + (tiny_model() + "/config.json"), {"config.json"});
  expect_refused(run + "--output" + file + "--json" + file, {"--json and --output"});
  expect_refused(run + "--report" + scratch / "no/page", {"--report"});
  expect_refused(run + "--report" + file + "--json" + file, {"--report and --json"});
  expect_refused(run + "--trace" + file + "--json" + file, {"--trace and --json are both"});
  expect_refused(run + "--trace" + file + "--output" + file, {"--trace and --output are both"});
  expect_refused(run + "--trace" + file + "--json" + scratch / "./x",
                 {"--trace and --json are both"});
  expect_refused(run + "--trace" + scratch / "no/x", {"--trace"});
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  if (geteuid() != 0) {  // root may write anywhere
    fs::create_directory(scratch / "closed");
    chmod((scratch / "closed").c_str(), 0500);
    expect_refused(run + "--output" + scratch / "closed/out", {"cannot write"});
  }
}

// /dev/stdout is such a link, which a rename would replace.
TEST(Output, LinksAreFollowed) {
  const ScratchFolder scratch;
  const std::string link = scratch / "link.json";
  fs::create_symlink("file.json", link);
  const CommandResult result = run_command(run_tiny("--repeat 1 --json") + link);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(read_json(scratch / "file.json").is_object());
  fs::remove(link);
  fs::create_symlink("/proc/self/fd/1", link);
  expect_refused(run_tiny("--json") + link, {"--json", "a device"});
  EXPECT_TRUE(fs::is_symlink(link));
  expect_refused(run_tiny("--json /dev/fd/1"), {"/dev/fd/1", "a device"});
}

TEST(Output, LinksToWhatIsNotThereAreFollowed) {
  const ScratchFolder scratch;
  const std::string link = scratch / "link.json";
  fs::create_symlink("file.json", link);
  const Words run = run_tiny("--json");
  expect_refused(run + scratch / "file.json" + "--trace" + link, {"--trace and --json are both"});
  const std::string unread = fs::absolute(tiny_model() + "/hf_quant_config.json").string();
  fs::create_symlink(unread, scratch / "model.json");
  expect_refused(run + scratch / "model.json", {"model.json", "read"});
  fs::create_symlink("circle.json", scratch / "circle.json");
  expect_refused(run + scratch / "circle.json", {"circle.json", "a link that leads to itself"});
  EXPECT_TRUE(fs::is_symlink(scratch / "circle.json"));
}

TEST(Output, NamesMayBeAsLongAsNamesCanBe) {
  const ScratchFolder scratch;
  const Words plan = "plan --preset tiny --json";
  const std::string file = scratch / std::string(255, 'n');
  const CommandResult result = run_command(plan + file);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(read_json(file).is_object());
  expect_refused(plan + scratch / std::string(256, 'n'), {"--json", "File name too long"});
}

TEST(Output, WhatIsReadIsNotReplaced) {
  const ScratchFolder scratch;
  const std::string input = scratch / "in.safetensors";
  ASSERT_EQ(run_command(run_tiny("--repeat 1 --output") + input).exit_code, 0);
  const std::string before = read_text(input);
  expect_refused(run_tiny({"--input", input, "--output", input}), {"--output " + input, "read"});
  EXPECT_EQ(read_text(input), before);
  // A file that does not exist yet would be read by the next run.
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
  const std::string inside = folder + "/model.safetensors";
  fs::create_directory(folder);
  fs::rename(input, inside);
  expect_refused(run_tiny({"--input", folder, "--output", inside}), {folder, "a folder"});
  EXPECT_EQ(read_text(inside), before);
  const std::string machine = scratch / "machine.json";
  write_text(machine, "{}");
  expect_refused("plan --preset tiny --machine" + Words{machine, "--json", machine},
                 {"--json " + machine, "read"});
  EXPECT_EQ(read_text(machine), "{}");
  // Caches of downloads keep names that link to contents.
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
  const std::string shard = folder + "/part-1";
  fs::copy(tiny_model(), folder);
  fs::rename(folder + "/model.safetensors", shard);
  nlohmann::json index;
  for (const std::string& name : Safetensors(shard).names()) {
    index["weight_map"][name] = "part-1";
  }
  write_text(folder + "/model.safetensors.index.json", index.dump());
  for (const std::string command : {"run", "info", "plan"}) {
    expect_refused({command, "--model", folder, "--json", shard}, {"--json " + shard, "read"});
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
  expect_refused("make-model --preset tiny --output" + Words{folder},
                 {"config.json", "another model"});
  EXPECT_EQ(read_text(folder + "/model.safetensors"), weights);
}

TEST(Output, ThatCannotBePrintedIsAnError) {
  const ScratchFolder scratch;
  const std::string said = scratch / "said";
  for (const char* command : {"run --help", "info", "info --markdown", "verify --markdown"}) {
    const std::string line = fmt::format("{} {} > /dev/full 2> {}", command_path(), command, said);
    const int status = std::system(line.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 3) << command;
    EXPECT_EQ(read_text(said), "moebius: cannot write to standard output\n") << command;
  }
}

TEST(Output, AReportNeedsThePageInTheBuild) {
  const ScratchFolder scratch;
  expect_refused("run --model /nowhere --report" + Words{scratch / "page.html"},
                 {build_has_page() ? "/nowhere" : "this build is without the page"});
  EXPECT_FALSE(fs::exists(scratch / "page.html"));
}

}  // namespace
}  // namespace moebius::test
