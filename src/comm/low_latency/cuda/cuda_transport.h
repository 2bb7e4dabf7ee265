// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LowLatency of a rank whose rows are on a GPU.
#pragma once

#include <memory>

#include "comm/low_latency/transport.h"

namespace moebius {

// For benchmarks: how combine sends, looked at when an object is made.
struct CombineTuning {
  bool in_bulk = true;  // by way of shared memory, where rows and x are aligned to 16 bytes
  int unit_parts = 0;   // parts of 1024 elements that a warp sends at a time; 0: computed
};
inline CombineTuning combine_tuning;

// Bytes of the window of every rank.
int64_t cuda_low_latency_bytes(const LowLatencyOptions& options, int num_ranks, int64_t max_local);

// Collective, in a group of GPUs.
// Throws Unsupported: more ranks, a larger top-k or more local experts than
// the kernels' words hold, or more experts and tokens than fit into shared memory.
std::unique_ptr<LowLatency::State> make_cuda_low_latency(Group& group,
                                                         ExpertPlacement placement,
                                                         const LowLatencyOptions& options);
// The same for ranks on several nodes.
std::unique_ptr<LowLatency::State> make_cuda_nodes_low_latency(Group& group,
                                                               ExpertPlacement placement,
                                                               const LowLatencyOptions& options);

}  // namespace moebius
