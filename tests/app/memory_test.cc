// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a layer of a few hundred megabytes costs in memory.
#include <gtest/gtest.h>

#include "tests/app/command.h"

namespace moebius {
namespace {

using test::CommandResult;
using test::read_json;
using test::run_command;
using test::ScratchFolder;

TEST(Memory, PeakOfARunStaysBelowTwicePointTwoTheWeights) {
  const ScratchFolder scratch;
  const CommandResult made =
      run_command({"make-model", "--preset", "olmoe-1b-7b", "--output", scratch / "model"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string json_file = scratch / "run.json";
  const CommandResult result = run_command({"run", "--model", scratch / "model", "--tokens", "64",
                                            "--repeat", "1", "--json", json_file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto memory = read_json(json_file)["memory"];
  EXPECT_GT(memory["weight_bytes"].get<double>(), 3e8);
  EXPECT_LT(memory["peak_bytes"].get<double>(), 2.2 * memory["weight_bytes"].get<double>());
}

}  // namespace
}  // namespace moebius
