// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The fixture of the tests of Group, which run on every shape of group.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/comm/group_runner.h"

namespace moebius::testing {

class GroupTest : public ::testing::TestWithParam<GroupShape> {
 protected:
  // Many ranks share few CPUs, so they do fewer rounds.
  int rounds(int wanted) const {
    return std::max(1, GetParam().num_ranks > 8 ? wanted / 20 : wanted);
  }
  void run(const std::function<void(Group&)>& body) { run_ranks(GetParam(), body); }
};

}  // namespace moebius::testing
