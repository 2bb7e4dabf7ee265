// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// low_latency.h in a build without CUDA: there are no groups of GPUs.
#include "comm/low_latency/cuda/cuda_transport.h"

namespace moebius {

int64_t cuda_low_latency_bytes(const LowLatencyOptions&, int, int64_t) {
  throw Unsupported("low latency on GPUs: built without CUDA");
}

std::unique_ptr<LowLatency::State> make_cuda_low_latency(Group& group,
                                                         ExpertPlacement,
                                                         const LowLatencyOptions&) {
  throw Unsupported("low latency on " + to_string(group.device()) + ": built without CUDA");
}

}  // namespace moebius
