// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers: memory that a rank needs, in bytes.
#pragma once

#include <cstdint>

#include "plan/copies.h"

namespace moebius::plan {

struct Buffers {
  int64_t weights = 0;     // of one layer
  int64_t windows = 0;     // of one layer: what peers store to
  int64_t outputs = 0;     // of one layer: low latency's two results
  int64_t workspaces = 0;  // of all layers together

  int64_t per_layer() const { return weights + windows + outputs; }
  int64_t total(int64_t layers) const { return layers * per_layer() + workspaces; }
};

// Of the rank that holds and receives most.  copies: those of a call (low latency: of a piece).
Buffers buffers(All2AllBackend backend, const Deployment& deployment, const Copies& copies);

// A window of low latency, and a receive bank of high throughput for this many rows.
int64_t low_latency_window_bytes(const Deployment& deployment);
int64_t receive_bank_bytes(const Deployment& deployment, int64_t rows);

}  // namespace moebius::plan
