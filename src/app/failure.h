// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A failed command reports its error in one line and ends with an exit code.
#pragma once

#include <exception>

#include "moebius/group.h"

namespace moebius::app {

// Thrown instead of an error that has been reported already.
struct Reported {
  int exit_code;
};

// Prints "moebius: <message>" on stderr, in one line, and returns the exit code.  Of the processes
// of a job, one prints for those of its machine.
int report_failure(const std::exception& error);

// Reports an error of a job of processes, of which one prints for all.  Throws Reported.
// REQUIRES: the group is alive.  Why: the launcher may end all processes once one of them has gone.
[[noreturn]] void fail_job(Group& group, const std::exception& error);

}  // namespace moebius::app
