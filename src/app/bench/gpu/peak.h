// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures what a GPU can do at best, for the functions of machine_peak.h.  Defined only in a build
// with CUDA.
#pragma once

#include "app/bench/machine_peak.h"

namespace moebius::bench {

// The rate of the tensor cores with operands in shared memory and nothing else to do.
ComputePeak gpu_compute_peak(Operand operand, const Stream& stream);

// The rate of reading a gigabyte in order, which is many times the size of the L2 cache.
double gpu_read_gb_per_s(const Stream& stream);

}  // namespace moebius::bench
