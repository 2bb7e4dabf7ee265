// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LowLatency in a group of GPUs.
#pragma once

#include <memory>

#include "comm/low_latency/transport.h"

namespace moebius {

// How combine sends.  Benchmarks change it; an object reads it when it is made.
struct CombineTuning {
  bool in_bulk = true;  // through shared memory, if rows and x are aligned to 16 bytes
  int unit_parts = 0;   // parts of 1024 elements that a warp sends at a time; 0: computed
};
inline CombineTuning combine_tuning;

// The bytes of each rank's window, when the rank with most experts has max_local of them.  Throws
// Unsupported as below.
int64_t cuda_low_latency_bytes(const LowLatencyOptions& options, int num_ranks, int64_t max_local);

// `window` has cuda_low_latency_bytes() zero bytes; null: the call makes it, and is collective.  So
// it is where ranks share an address space.  Throws Unsupported: more ranks, a larger top-k or more
// local experts than the kernels' words hold, or more experts and tokens than fit into shared
// memory.
std::unique_ptr<LowLatency::State> make_cuda_low_latency(Group& group,
                                                         ExpertPlacement placement,
                                                         const LowLatencyOptions& options,
                                                         std::unique_ptr<Window> window);
// The same for ranks on several nodes.
std::unique_ptr<LowLatency::State> make_cuda_nodes_low_latency(Group& group,
                                                               ExpertPlacement placement,
                                                               const LowLatencyOptions& options);

}  // namespace moebius
