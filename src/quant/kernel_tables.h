// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel tables that impls.cc lists.  Each is defined in a file of its own.
#pragma once

#include "quant/row_kernels.h"

namespace moebius::quant {

extern const RowKernels ref_kernels;
extern const RowKernels cpu_avx2_kernels;
extern const RowKernels cpu_avx512_kernels;

}  // namespace moebius::quant
