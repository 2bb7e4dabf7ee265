// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/error_text.h"
#include "tests/temp_dir.h"

namespace moebius::plan {
namespace {

using testing::expect_mentions;
using testing::message_of;

TEST(Machine, EveryNameIsValidAndSaysWhereItsFiguresAreFrom) {
  for (const std::string& name : machine_names()) {
    const Machine machine = find_machine(name);
    EXPECT_NO_THROW(expect_valid(machine));
    for (const MachineFigure& f : machine_figures()) {
      EXPECT_FALSE((machine.*f.figure).source.empty()) << name << " " << f.key;
    }
  }
  EXPECT_THROW(find_machine("abacus"), InvalidArgument);
}

TEST(Machine, FilesReplaceFiguresOfABase) {
  const TempDir folder;
  const auto write = [&](const char* text) {
    std::ofstream(folder / "m.json") << text;
    return (folder / "m.json").string();
  };
  const Machine machine =
      read_machine(write(R"({"base": "h200", "description": "mine", "link_gb_per_s": 100})"));
  EXPECT_EQ(machine.description, "mine");
  EXPECT_EQ(machine.link_gb_per_s.value, 100);
  EXPECT_EQ(machine.link_gb_per_s.source, "file");
  EXPECT_EQ(machine.node_gb_per_s.value, find_machine("h200").node_gb_per_s.value);
  const auto refused = [&](const char* text, const char* part) {
    expect_mentions(message_of([&] { read_machine(write(text)); }), part);
  };
  refused("{", "not valid JSON at byte 2");
  refused("[]", "a JSON array, expected an object");
  refused(R"({"base": "h200", "link_us": 1e400})", "1e400");
  refused(R"({"base": "h200", "link_us": null})", "link_us is null");
  refused(R"({"base": "h200", "link_us": true})", "link_us is true");
  refused((R"({"base": )" + std::string(100'000, '[')).c_str(), "nested 65 deep, the limit is 64");
  refused(R"({"base": 5})", "base is 5");
  refused("{}", "base");
  refused(R"({"base": "abacus"})", "machine is abacus");
  refused(R"({"base": "h200", "speed": 3})", "speed is no figure");
  refused(R"({"base": "h200", "link_gb_per_s": "fast"})", "link_gb_per_s");
  refused(R"({"base": "h200", "link_gb_per_s": -1})", "link_gb_per_s is -1, expected at least 0");
  refused(R"({"base": "h200", "link_gb_per_s": 0})", "link_gb_per_s is 0");
  refused(R"({"base": "cpu", "read_overlap": 2})", "read_overlap is 2, expected at most 1");
  refused(R"({"base": "cpu", "memory_gb": 9.3e9})", "memory_gb is 9300000000, expected at most");
  refused(R"({"base": "cpu", "link_us": 1e308})", "link_us is 1e+308, expected at most 1000000000");
  std::filesystem::create_directory(folder / "folder.json");
  ASSERT_EQ(mkfifo((folder / "pipe.json").c_str(), 0600), 0);
  for (const std::filesystem::path& path :
       {folder / "none.json", folder / "folder.json", folder / "pipe.json",
        std::filesystem::path("/dev/zero")}) {
    expect_mentions(message_of([&] { read_machine(path.string()); }), "cannot open");
  }
}

}  // namespace
}  // namespace moebius::plan
