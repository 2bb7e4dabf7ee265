// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers: the memory that a rank needs, in bytes.
#pragma once

#include <cstdint>

#include "plan/copies.h"

namespace moebius::plan {

struct Buffers {
  int64_t weights = 0;     // of one layer
  int64_t windows = 0;     // of one layer: the memory that peers store to
  int64_t outputs = 0;     // of one layer: the two results of low latency
  int64_t workspaces = 0;  // shared by all layers

  int64_t per_layer() const { return weights + windows + outputs; }
  int64_t total(int64_t layers) const { return layers * per_layer() + workspaces; }
};

// The buffers of the rank that holds and receives most.  `copies` are those of a call, or for low
// latency those of a piece.
Buffers buffers(All2AllBackend backend, const Deployment& deployment, const Copies& copies);

// The bytes of a low-latency window, and of a high-throughput receive bank for this many rows.
int64_t low_latency_window_bytes(const Deployment& deployment);
int64_t receive_bank_bytes(const Deployment& deployment, int64_t rows);

}  // namespace moebius::plan
