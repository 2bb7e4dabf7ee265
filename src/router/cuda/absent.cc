// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The function of count.h in a build without CUDA.
#include "router/cuda/count.h"

namespace moebius::router {

void cuda_count_expert_tokens(const Tensor& ids, const Tensor&, const Tensor&, const Stream&) {
  expect_usable(ids.device());
}

}  // namespace moebius::router
