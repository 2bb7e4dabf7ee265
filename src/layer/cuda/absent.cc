// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of weighted_sum.h in a build without CUDA.
#include "layer/cuda/weighted_sum.h"

namespace moebius {

void cuda_weighted_sum(const CudaSumArgs& args, const Stream&) {
  expect_usable(args.rows.device());
}

void cuda_batched_sum(const CudaSumArgs& args, int64_t, const Stream&) {
  expect_usable(args.rows.device());
}

}  // namespace moebius
