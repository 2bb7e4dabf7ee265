// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints of tests/fixtures, one per family, made by tests/fixtures/make.py.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "moebius/safetensors.h"
#include "moebius/tolerance.h"
#include "tests/app/command.h"

namespace moebius::test {

namespace fs = std::filesystem;

inline fs::path family_root() {
  const char* folder = std::getenv("MOEBIUS_FAMILIES");
  return folder != nullptr ? folder : "tests/fixtures";
}

struct FamilyCase {
  std::string name;
  fs::path expected;  // the folder of the family
  fs::path model;     // itself, or saved/ in it
};

inline void PrintTo(const FamilyCase& c, std::ostream* out) {
  *out << c.name;
}

inline std::vector<FamilyCase> family_cases() {
  std::vector<FamilyCase> result;
  if (fs::exists(family_root())) {
    for (const auto& entry : fs::directory_iterator(family_root())) {
      const fs::path folder = entry.path();
      if (!fs::exists(folder / "expected.safetensors")) {
        continue;
      }
      const std::string name = folder.filename().string();
      result.push_back({name, folder, folder});
      if (fs::exists(folder / "saved")) {
        result.push_back({name + "_saved", folder, folder / "saved"});
      }
    }
  }
  std::sort(result.begin(), result.end(),
            [](const FamilyCase& a, const FamilyCase& b) { return a.name < b.name; });
  return result;
}

class FamilyFixtureTest : public testing::TestWithParam<FamilyCase> {
 protected:
  using Command = CommandResult (*)(const Words& arguments);

  void expect_output(const Words& options, Command command = run_command) {
    const fs::path file = GetParam().expected / "expected.safetensors";
    const Safetensors expected(file);
    const std::vector<std::string> names = expected.names();
    const auto input = std::find_if(names.begin(), names.end(), [](const std::string& name) {
      return name.ends_with(".input");
    });
    ASSERT_NE(input, names.end());
    const std::string block = input->substr(0, input->rfind('.'));
    const size_t number = input->find("layers.") + 7;
    const std::string layer = input->substr(number, input->find('.', number) - number);

    const ScratchFolder scratch;
    const std::string output = scratch / "output.safetensors";
    const CommandResult result =
        command("run --repeat 1 --model" +
                Words{GetParam().model.string(), "--layer", layer, "--input", file.string(),
                      "--input-tensor", *input, "--output", output} +
                options);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_LE(
        relative_error(Safetensors(output).tensor("output"), expected.tensor(block + ".output")),
        layer_tolerance(QuantConfig()));
  }
};

inline std::string family_case_name(const testing::TestParamInfo<FamilyCase>& c) {
  return c.param.name;
}

}  // namespace moebius::test
