// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The command without a process of its own, for tests of which CUDA's start would be the most part.
#pragma once

#include "tests/app/command.h"

namespace moebius::test {

// As run_command.  Nothing else of this process may print meanwhile.
CommandResult run_command_here(const Words& arguments);

}  // namespace moebius::test
