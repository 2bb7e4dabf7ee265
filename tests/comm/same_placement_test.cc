// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that place experts differently get no transport.  tests/layer/placement_test.cc does the
// same with layers.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "moebius/dispatch.h"
#include "moebius/low_latency.h"
#include "tests/comm/group_runner.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

// `make` makes a transport; its messages begin with `who`.  A rank whose placement nobody could
// follow must not leave the others waiting, either.
void expect_same_placements(
    const std::string& who,
    const std::function<void(Group& group, const ExpertPlacement& placement)>& make) {
  run_thread_ranks({.num_ranks = 3}, [&](Group& group) {
    const auto expect_refused = [&](const std::string& why, const ExpertPlacement& of_last) {
      const ExpertPlacement own = group.rank() == 2 ? of_last : ExpertPlacement::linear(6, 3);
      expect_error({who + why}, [&] { make(group, own); });
    };
    expect_refused(": the number of experts is 9 on rank 2 and 6 on rank 0",
                   ExpertPlacement::linear(9, 3));
    expect_refused(": expert 1 is placed on rank 2 by rank 2, and on rank 0 by rank 0",
                   ExpertPlacement::from_ranks({0, 2, 1, 1, 2, 2}, 3));
    expect_refused(": expert 5 is placed on rank 3 by rank 2, and on rank 2 by rank 0",
                   ExpertPlacement::from_ranks({0, 0, 1, 1, 2, 3}, 4));
    make(group, ExpertPlacement::linear(6, 3));
  });
}

TEST(SamePlacement, IsThatOfHighThroughput) {
  expect_same_placements("high throughput", [](Group& group, const ExpertPlacement& placement) {
    HighThroughput(group, placement);
  });
}

TEST(SamePlacement, IsThatOfLowLatency) {
  expect_same_placements("low latency", [](Group& group, const ExpertPlacement& placement) {
    LowLatency(group, placement, {.max_tokens = 4, .hidden = 128, .topk = 2});
  });
}

}  // namespace
}  // namespace moebius::testing
