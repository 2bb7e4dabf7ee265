// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The fp8 cast of rows in flight.  It differs from quantize() of the quant stage: as in DeepEP's
// low-latency kernels, the maximum of a group is floored at 1e-4, and values are multiplied by 448
// / maximum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moebius/dtype.h"
#include "moebius/low_latency.h"
#include "quant/row_kernels.h"

namespace moebius {

struct CastRow {
  uint8_t* values;  // e4m3 [hidden]
  float* scales;    // [hidden / 128]
};
// Casts a row of `hidden` elements, a multiple of 128, so that row = values * scales.  Every table
// of kernels gives the same bits.
void cast_row(const quant::RowKernels& kernels,
              DType dtype,
              const std::byte* row,
              int64_t hidden,
              LowLatencyCast cast,
              const CastRow& out);

}  // namespace moebius
