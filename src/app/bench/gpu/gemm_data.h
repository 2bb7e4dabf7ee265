// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes the operands of grouped GEMMs on the GPU and checks the results there, since they are too
// large for the host.
#pragma once

#include <cstdint>

#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::bench {

// Fills a tensor with bf16 in (-1, 1), with any finite f8e4m3, or with f32 in [1/512, 3/512).
void fill_random(const Tensor& tensor, uint64_t seed, const Stream& stream);

struct GemmError {
  double relative = 0;    // |out - sum| / |sum| over the elements that were checked
  int64_t unwritten = 0;  // elements that are NaN
};

// Compares `columns` random columns of every row with sums in f64.  f8e4m3 without scales is taken
// as it is.  Waits for the stream.
GemmError check_products(const cuda::GroupedGemm& gemm, int columns, const Stream& stream);

}  // namespace moebius::bench
