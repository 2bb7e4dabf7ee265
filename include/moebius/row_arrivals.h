// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowArrivals: rows of a dispatch between GPUs that are still on their way, so that experts can
// begin with those that are here.
//
// They come in waves.  Wave 0 brings all that tells where rows belong: ids, weights, numbers.  Wave
// w > 0 brings the rows whose first local expert is among `experts_per_wave` from
// (w - 1) * experts_per_wave on.  So what expert l needs is here with waves 0 to
// 1 + l / experts_per_wave of every source.
#pragma once

#include <cstdint>

#include "moebius/stream.h"

namespace moebius {

struct RowArrivals {
  // For kernels on the receiving GPU, which poll device memory; it lives as long as the object that
  // dispatched.
  struct Signals {
    // [waves, num_sources]: a wave of a source, and those before it, are here once the upper half
    // of its word has reached `epoch` (which wraps).  Null: all rows are here.
    const uint64_t* words = nullptr;
    // [num_sources]: once one is not 0 the dispatch has failed, and nothing more may come.
    const uint64_t* failed = nullptr;
    uint32_t epoch = 0;
    int num_sources = 0;
    int experts_per_wave = 1;
  };

  Signals signals;
  Event complete;  // all rows are here; of waves only

  explicit operator bool() const { return signals.words != nullptr; }

  // The stream waits for wave 0.  Without waves it waits for nothing.
  void await_ids(const Stream& stream) const;
};

}  // namespace moebius
