// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of activation.h, permute.h and weighted_sum.h in a build without CUDA.
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/rows/permute.h"
#include "experts/cuda/rows/weighted_sum.h"
#include "moebius/error.h"

namespace moebius {

void cuda_order_slots(const CudaOrderArgs& args, const Stream&) {
  expect_usable(args.ids.device());
}

void cuda_permute_rows(const CudaPermuteArgs& args, const Stream&) {
  expect_usable(args.x.device());
}

void cuda_weighted_sum(const CudaSumArgs& args, const Stream&) {
  expect_usable(args.rows.device());
}

void cuda_batched_sum(const CudaSumArgs& args, int64_t, const Stream&) {
  expect_usable(args.rows.device());
}

namespace cuda {

void activate(
    const ActivationSpec&, const RowGroups&, const Tensor& input, const Tensor&, const Stream&) {
  expect_usable(input.device());
}

}  // namespace cuda

}  // namespace moebius
