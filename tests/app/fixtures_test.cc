// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs every checkpoint with expected outputs through the command: both layers, in both activation
// formats, with and without chunks.
#include "tests/app/fixtures.h"

namespace moebius::test {
namespace {

class Fixtures : public FixtureTest {};

TEST_P(Fixtures, OutputIsWithinTolerance) {
  for (const int layer : {0, 1}) {
    for (const std::string format : {"standard", "batched"}) {
      for (const bool is_chunked : {false, true}) {
        SCOPED_TRACE(testing::Message() << "layer " << layer << ", " << format
                                        << (is_chunked ? ", chunks of 16" : ""));
        const Words options = {"--format", format};
        expect_output(layer, is_chunked ? options + "--chunk-tokens 16" : options);
      }
    }
  }
}

// Where activations are not quantized, only the rounding to bf16 is left.
TEST_P(Fixtures, WeightsAsStoredStayWithinTheWeightOnlyTolerance) {
  expect_output(0, "--quant none", layer_tolerance(QuantConfig()));
}

TEST_P(Fixtures, CheckAgreesWithTheReference) {
  const CommandResult result =
      run_command("run --tokens 24 --repeat 1 --check --model" + Words{folder_.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_NE(result.out.find("check          ok"), std::string::npos) << result.out;
}

INSTANTIATE_TEST_SUITE_P(All, Fixtures, testing::ValuesIn(kFixtures), fixture_name);

}  // namespace
}  // namespace moebius::test
