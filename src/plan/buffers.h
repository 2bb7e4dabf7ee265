// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers: the memory that a rank needs, in bytes.
#pragma once

#include <cstdint>

#include "plan/copies.h"

namespace moebius::plan {

struct Buffers {
  int64_t weights = 0;  // of one layer
  // All layers share the following; windows and outputs belong to their transport (transports.h).
  int64_t windows = 0;  // the memory that peers store to
  int64_t outputs = 0;  // the two results of low latency
  int64_t workspaces = 0;

  int64_t total(int64_t layers) const { return layers * weights + windows + outputs + workspaces; }
};

// The buffers of the rank that holds and receives most.  `copies` are those of a call, or for low
// latency those of a piece.
Buffers buffers(All2AllBackend backend, const Deployment& deployment, const Copies& copies);

// The bytes of a low-latency window.
int64_t low_latency_window_bytes(const Deployment& deployment);
// What a layer needs of high throughput when `rows` rows come to the rank that receives most, in
// each of `num_results` micro-batches.
HighThroughputNeeds high_throughput_needs(const Deployment& deployment,
                                          int64_t rows,
                                          int64_t num_results);

}  // namespace moebius::plan
