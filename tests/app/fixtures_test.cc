// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every checkpoint with expected outputs through the command: both layers, both activation formats,
// chunking on and off.
#include "tests/app/fixtures.h"

namespace moebius {
namespace {

using test::CommandResult;
using test::run_command;
using test::ScratchFolder;

class Fixtures : public test::FixtureTest {};

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
  const std::filesystem::path file = folder_ / "expected.safetensors";
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

INSTANTIATE_TEST_SUITE_P(All, Fixtures, testing::ValuesIn(test::kFixtures), test::fixture_name);

}  // namespace
}  // namespace moebius
