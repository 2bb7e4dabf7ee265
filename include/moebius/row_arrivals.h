// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowArrivals tells which rows of a dispatch between GPUs have arrived, so that experts can begin
// with them while others are still on their way.
//
// Rows arrive in waves.  Wave 0 brings what tells where rows belong: ids, weights and counts.  Wave
// w > 0 brings the rows whose first local expert is in
// [(w - 1) * experts_per_wave, w * experts_per_wave).  So expert l can begin once waves 0 to
// 1 + l / experts_per_wave of every source are here.
// Thread-safety: a value that any number of threads and streams may read.
#pragma once

#include <cstdint>

#include "moebius/api.h"
#include "moebius/stream.h"

namespace moebius MOEBIUS_API {

struct RowArrivals {
  // Kernels on the receiving GPU poll this device memory.  It lives as long as the object that
  // dispatched.
  struct Signals {
    // [waves, num_sources]: a wave of a source and all earlier waves are here once the upper half
    // of its word has reached `epoch`, which wraps.  Null means that all rows are here.
    const uint64_t* words = nullptr;
    // [num_sources]: once a word is not 0 the dispatch has failed, and no more rows may arrive.
    const uint64_t* failed = nullptr;
    uint32_t epoch = 0;
    int num_sources = 0;
    int experts_per_wave = 1;
  };

  Signals signals;
  Event complete;  // all rows are here; used with waves only

  explicit operator bool() const { return signals.words != nullptr; }

  // Makes the stream wait for wave 0.  Does nothing without waves.  Throws CudaError.
  void await_ids(const Stream& stream) const;
};

}  // namespace moebius
