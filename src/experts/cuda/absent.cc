// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of permute.h in a build without CUDA.
#include "experts/cuda/permute.h"
#include "moebius/error.h"

namespace moebius {

void cuda_order_slots(const CudaOrderArgs& args, const Stream&) {
  expect_usable(args.ids.device());
}

void cuda_permute_rows(const Tensor& x, const Tensor&, const Tensor&, const Stream&) {
  expect_usable(x.device());
}

}  // namespace moebius
