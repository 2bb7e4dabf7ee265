// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The function of batched.h in a build without CUDA.
#include "quant/cuda/batched.h"

namespace moebius::quant {

void cuda_quantize_batched(const BatchedQuantize& args, const Stream&) {
  expect_usable(args.x.device());
}

}  // namespace moebius::quant
