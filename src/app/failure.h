// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a failed command says, and its exit code.
#pragma once

#include <exception>

#include "moebius/group.h"

namespace moebius::app {

// Thrown in place of an error of which enough has been said.
struct Reported {
  int exit_code;
};

// "moebius: <message>", one line on stderr.  Returns the exit code.
int report_failure(const std::exception& error);

// The same for a job of processes, one of which speaks for all: rank 0, unless rank 0 is what the
// others wait for.  The group must be alive, since the launcher may end all once one has gone.
[[noreturn]] void fail_job(Group& group, const std::exception& error);

}  // namespace moebius::app
