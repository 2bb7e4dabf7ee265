// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs of dispatch_problems() on every rank of a group.
#pragma once

#include <gtest/gtest.h>

#include "problems/dispatch_problem.h"
#include "tests/comm/group_runner.h"

namespace moebius::testing {

// Calls body(problem, group, the rank's input) for each problem.
template <typename Body>
void run_problems(const GroupShape& shape, const Body& body) {
  for (const DispatchProblem& p : dispatch_problems(shape.num_ranks)) {
    SCOPED_TRACE(p.seed);
    run_ranks(shape, [&](Group& group) { body(p, group, make_input(p, group.rank())); });
  }
}

}  // namespace moebius::testing
