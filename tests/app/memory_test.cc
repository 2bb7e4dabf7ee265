// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests how much memory a layer of a few hundred megabytes takes.
#include <gtest/gtest.h>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

TEST(Memory, PeakOfARunStaysBelowTwicePointTwoTheWeights) {
  const ScratchFolder scratch;
  const std::string model = make_model("--preset olmoe-1b-7b", scratch / "model");
  const auto json = run_for_json("run --tokens 64 --repeat 1 --model" + Words{model}).json;
  const auto& memory = json["memory"];
  EXPECT_GT(memory["weight_bytes"].get<double>(), 3e8);
  EXPECT_LT(memory["peak_bytes"].get<double>(), 2.2 * memory["weight_bytes"].get<double>());
}

}  // namespace
}  // namespace moebius::test
