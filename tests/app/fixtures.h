// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints with expected outputs, with which the command's output is compared.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "moebius/safetensors.h"
#include "moebius/tolerance.h"
#include "tests/app/command.h"

namespace moebius::test {

struct Fixture {
  const char* folder;
  std::optional<QuantFormat> activation;  // how the checkpoint quantizes activations

  double tolerance() const {
    QuantConfig quant;
    quant.a1.format = activation;
    return layer_tolerance(quant);
  }
};

// Names the cases for CTest.
inline void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.folder;
}

inline constexpr Fixture kFixtures[] = {
    {"mixtral", std::nullopt},
    {"qwen2_moe", std::nullopt},
    {"qwen3_moe", std::nullopt},
    {"deepseek_v3", std::nullopt},
    {"gpt_oss", std::nullopt},
    {"llama4", std::nullopt},
    {"deepseek_v3_fp8", QuantFormat::kFp8},
    {"gpt_oss_mxfp4", std::nullopt},
    {"qwen3_moe_int4", std::nullopt},
    {"mixtral_int8", QuantFormat::kInt8},
    {"qwen3_moe_nvfp4", QuantFormat::kNvfp4},
};

inline std::string fixture_name(const testing::TestParamInfo<Fixture>& fixture) {
  return fixture.param.folder;
}

class FixtureTest : public testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    const char* root = std::getenv("MOEBIUS_FIXTURES");
    folder_ =
        std::filesystem::path(root != nullptr ? root : "../shared/fixtures") / GetParam().folder;
    if (!std::filesystem::exists(folder_ / "config.json")) {
      GTEST_SKIP() << "no fixture at " << folder_;
    }
  }

  // "model.layers.1.mlp.input", as the expected file spells the block of a layer.
  static std::string input_name(const Safetensors& expected, int layer) {
    const std::string start = "model.layers." + std::to_string(layer) + ".";
    for (const std::string& name : expected.names()) {
      if (name.starts_with(start) && name.ends_with(".input")) {
        return name;
      }
    }
    return "";
  }

  using Command = CommandResult (*)(const Words& arguments);

  void expect_output(int layer,
                     const Words& options,
                     double tolerance = GetParam().tolerance(),
                     Command command = run_command) {
    const std::filesystem::path file = folder_ / "expected.safetensors";
    const Safetensors expected(file);
    const std::string input = input_name(expected, layer);
    ASSERT_NE(input, "");
    const std::string block = input.substr(0, input.rfind('.'));

    const ScratchFolder scratch;
    const std::string output = scratch / "output.safetensors";
    const CommandResult result =
        command("run --repeat 1 --model" +
                Words{folder_.string(), "--layer", std::to_string(layer), "--input", file.string(),
                      "--input-tensor", input, "--output", output} +
                options);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");

    const Safetensors written(output);
    ASSERT_EQ(written.names(), std::vector<std::string>{"output"});
    EXPECT_EQ(written.tensor("output").dtype(), DType::kF32);
    EXPECT_LE(relative_error(written.tensor("output"), expected.tensor(block + ".output")),
              tolerance);
  }

  std::filesystem::path folder_;
};

}  // namespace moebius::test
