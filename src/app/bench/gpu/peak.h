// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a GPU can do at best, measured: machine_peak.h asks here for a stream of one.  Defined only
// in a build with CUDA.
#pragma once

#include "app/bench/machine_peak.h"

namespace moebius::bench {

// Tensor cores with operands in shared memory and nothing else to do.
ComputePeak gpu_compute_peak(Operand operand, const Stream& stream);

// Reading a gigabyte in order, many times the L2 cache.
double gpu_read_gb_per_s(const Stream& stream);

}  // namespace moebius::bench
