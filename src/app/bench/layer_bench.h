// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A whole layer on one rank (router, experts, reduction) against the machine's roofline: no call
// can take less than its operations at the peak, nor than the weights it touches at the read
// bandwidth.  Both are measured in the same run by the same threads.
#pragma once

#include "app/options.h"

namespace moebius::bench {

// The exit code.  Throws InvalidArgument or Unsupported for a preset or scheme that cannot be had.
int run_layer_bench(const app::BenchOptions& options);

}  // namespace moebius::bench
