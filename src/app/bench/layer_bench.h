// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Times a whole layer on one rank (router, experts, reduction) and compares it with the machine's
// roofline: no call can take less time than its operations take at the peak, nor than reading the
// weights that it touches takes at the read bandwidth.  Both rates are measured in the same run by
// the same threads.
#pragma once

#include "app/options.h"

namespace moebius::bench {

// Returns the exit code.  Throws InvalidArgument or Unsupported for a preset or scheme that does
// not exist or cannot be used.
int run_layer_bench(const app::BenchOptions& options);

}  // namespace moebius::bench
