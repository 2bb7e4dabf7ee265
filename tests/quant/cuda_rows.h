// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowKernels whose elements are encoded and decoded on a GPU, for tests: every pointer is to host
// memory, which is copied there and back.
#pragma once

#include "moebius/stream.h"
#include "quant/row_kernels.h"

namespace moebius::quant {

// `stream` must outlive the use of the kernels; one set at a time.
RowKernels cuda_rows(const Stream& stream);

}  // namespace moebius::quant
