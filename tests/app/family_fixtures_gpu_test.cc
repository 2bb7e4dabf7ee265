// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the checkpoint of each family in tests/fixtures on GPUs, on one rank and on four, which
// share GPUs where there are fewer.
#include "moebius/device.h"
#include "tests/app/command_here.h"
#include "tests/app/family_fixtures.h"
#include "tests/gpu_test.h"

namespace moebius::test {
namespace {

class FamilyFixturesOnGpu : public FamilyFixtureTest {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
  }
};

TEST_P(FamilyFixturesOnGpu, OneRank) {
  expect_output("--device cuda", run_command_here);
}

TEST_P(FamilyFixturesOnGpu, FourRanks) {
  expect_output("--device cuda --ranks 4 --all2all high_throughput", run_command_here);
}

INSTANTIATE_TEST_SUITE_P(All,
                         FamilyFixturesOnGpu,
                         testing::ValuesIn(family_cases()),
                         family_case_name);

}  // namespace
}  // namespace moebius::test
