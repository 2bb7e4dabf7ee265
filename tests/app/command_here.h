// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the command in this process, for tests that would spend most of their time on starting CUDA.
#pragma once

#include "tests/app/command.h"

namespace moebius::test {

// Like run_command().  REQUIRES: nothing else in this process prints meanwhile.
CommandResult run_command_here(const Words& arguments);

}  // namespace moebius::test
