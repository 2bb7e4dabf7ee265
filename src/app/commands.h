// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The subcommands.  Each returns an exit code; errors are thrown.
#pragma once

#include "app/options.h"

namespace moebius::app {

enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  // the work was done and its result is wrong
  kBadInput = 2,     // usage or input is wrong; nothing was written
  kRunFailed = 3,    // out of memory, a full disk, a lost rank
};

// Parses the command line and runs its subcommand.  An error becomes one line on stderr and an exit
// code.
int run_command_line(int argc, const char* const* argv);

int run_subcommand(const RunOptions& options);
int run_subcommand(const MakeModelOptions& options);
int run_subcommand(const BenchOptions& options);
int run_subcommand(const VerifyOptions& options);
int run_subcommand(const InfoOptions& options);
int run_subcommand(const PlanOptions& options);

}  // namespace moebius::app
