// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A build without CUDA: no group has tensors on a GPU that these could be called with.
#include "comm/device/sum_parts.h"
#include "comm/high_throughput/cuda/make_transport.h"
#include "moebius/error.h"

namespace moebius::comm {

void launch_sum_parts(const RankParts&, const Tensor&, const Stream&) {
  throw Unsupported("sum of the ranks' parts on a GPU: built without CUDA");
}

std::unique_ptr<HighThroughput::State> make_cuda_high_throughput(Group&,
                                                                 ExpertPlacement,
                                                                 const DispatchConfig&,
                                                                 const DispatchConfig&) {
  throw Unsupported("high throughput on a GPU: built without CUDA");
}

}  // namespace moebius::comm
