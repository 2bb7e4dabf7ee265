// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowKernels for tests that encode and decode elements on a GPU.  Every pointer is to host memory;
// the kernels copy it to the GPU and back.
#pragma once

#include "moebius/stream.h"
#include "quant/row_kernels.h"

namespace moebius::quant {

// REQUIRES: `stream` outlives the use of the kernels; only one set of kernels is used at a time.
RowKernels cuda_rows(const Stream& stream);

}  // namespace moebius::quant
