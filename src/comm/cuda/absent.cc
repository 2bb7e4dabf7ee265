// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A build without CUDA: no group has tensors on a GPU that these could be called with.
#include "comm/cuda/sum_parts.h"
#include "moebius/error.h"

namespace moebius::comm {

void launch_sum_parts(const RankParts&, const Tensor&, const Stream&) {
  throw Unsupported("sum of the ranks' parts on a GPU: built without CUDA");
}

}  // namespace moebius::comm
