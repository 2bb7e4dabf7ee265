// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every checkpoint with expected outputs through the command: both layers, both activation formats,
// chunking on and off.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "moebius/safetensors.h"
#include "moebius/tolerance.h"
#include "tests/app/command.h"

namespace moebius {
namespace {

using test::CommandResult;
using test::run_command;
using test::ScratchFolder;
namespace fs = std::filesystem;

struct Fixture {
  const char* folder;
  std::optional<QuantFormat> activation;  // what the checkpoint has activations quantized to

  double tolerance() const {
    QuantConfig quant;
    quant.a1.format = activation;
    return layer_tolerance(quant);
  }
};

// Names the cases for CTest.
void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.folder;
}

class Fixtures : public testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    const char* root = std::getenv("MOEBIUS_FIXTURES");
    folder_ = fs::path(root != nullptr ? root : "../shared/fixtures") / GetParam().folder;
    if (!fs::exists(folder_ / "config.json")) {
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

  void expect_output(int layer, const std::vector<std::string>& options) {
    const fs::path file = folder_ / "expected.safetensors";
    const Safetensors expected(file);
    const std::string input = input_name(expected, layer);
    ASSERT_NE(input, "");
    const std::string block = input.substr(0, input.rfind('.'));

    const ScratchFolder scratch;
    const std::string output = scratch / "output.safetensors";
    std::vector<std::string> arguments = {"run",
                                          "--model",
                                          folder_.string(),
                                          "--layer",
                                          std::to_string(layer),
                                          "--input",
                                          file.string(),
                                          "--input-tensor",
                                          input,
                                          "--output",
                                          output,
                                          "--repeat",
                                          "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult result = run_command(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");

    const Safetensors written(output);
    ASSERT_EQ(written.names(), std::vector<std::string>{"output"});
    EXPECT_EQ(written.tensor("output").dtype(), DType::kF32);
    EXPECT_LE(relative_error(written.tensor("output"), expected.tensor(block + ".output")),
              GetParam().tolerance());
  }

  fs::path folder_;
};

TEST_P(Fixtures, OutputIsWithinTolerance) {
  for (const int layer : {0, 1}) {
    for (const std::string format : {"standard", "batched"}) {
      for (const bool is_chunked : {false, true}) {
        SCOPED_TRACE(testing::Message() << "layer " << layer << ", " << format
                                        << (is_chunked ? ", chunks of 16" : ""));
        std::vector<std::string> options = {"--format", format};
        if (is_chunked) {
          options.insert(options.end(), {"--chunk-tokens", "16"});
        }
        expect_output(layer, options);
      }
    }
  }
}

TEST_P(Fixtures, WeightsAsStoredStayWithinTheWeightOnlyTolerance) {
  // Unquantized activations: what is left is the rounding to bf16.
  const fs::path file = folder_ / "expected.safetensors";
  const ScratchFolder scratch;
  const std::string output = scratch / "output.safetensors";
  const Safetensors expected(file);
  const std::string input = input_name(expected, 0);
  const CommandResult result = run_command(
      {"run", "--model", folder_.string(), "--layer", "0", "--input", file.string(),
       "--input-tensor", input, "--output", output, "--repeat", "1", "--quant", "none"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string block = input.substr(0, input.rfind('.'));
  EXPECT_LE(
      relative_error(Safetensors(output).tensor("output"), expected.tensor(block + ".output")),
      layer_tolerance(QuantConfig()));
}

TEST_P(Fixtures, CheckAgreesWithTheReference) {
  const CommandResult result = run_command(
      {"run", "--model", folder_.string(), "--tokens", "24", "--repeat", "1", "--check"});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_NE(result.out.find("check          ok"), std::string::npos) << result.out;
}

constexpr Fixture kFixtures[] = {
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

INSTANTIATE_TEST_SUITE_P(All, Fixtures, testing::ValuesIn(kFixtures), [](const auto& fixture) {
  return std::string(fixture.param.folder);
});

}  // namespace
}  // namespace moebius
