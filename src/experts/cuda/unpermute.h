// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::cuda {

// out[slot] = rows[row_of_slot[slot]], zeros where that is -1.  rows [R.., H], out [slots, H] of
// one dtype, row_of_slot i32 [slots].
void unpermute_rows(const Tensor& rows,
                    const Tensor& row_of_slot,
                    const Tensor& out,
                    const Stream& stream);

}  // namespace moebius::cuda
