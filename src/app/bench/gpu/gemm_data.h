// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Operands of grouped GEMMs made on the GPU, and a check of their results there: too many for the
// host.
#pragma once

#include <cstdint>

#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::bench {

// bf16 in (-1, 1), any finite f8e4m3, f32 in [1/512, 3/512).
void fill_random(const Tensor& tensor, uint64_t seed, const Stream& stream);

struct GemmError {
  double relative = 0;    // |out - sum| / |sum| over what was looked at
  int64_t unwritten = 0;  // NaN
};

// `columns` random columns of every row of a group, summed in f64; f8e4m3 without scales as it is.
// Waits for the stream.
GemmError check_products(const cuda::GroupedGemm& gemm, int columns, const Stream& stream);

}  // namespace moebius::bench
