// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Waits for rows that are on their way (row_arrivals.h).  Why they need no deadline: the dispatch
// has one and reports its failure, and its kernel starts before anything waits here.
#pragma once

#include "core/cuda/ptx.cuh"
#include "core/cuda/signal_word.h"
#include "moebius/row_arrivals.h"

namespace moebius::cuda {

// One thread waits until the wave of every source is here or the dispatch has failed.
__device__ inline void await_wave(const RowArrivals::Signals& signals, int wave) {
  const uint64_t* words = signals.words + wave * signals.num_sources;
  for (uint32_t polls = 1;; ++polls) {
    bool is_here = true;
    for (int source = 0; source < signals.num_sources; ++source) {
      const uint64_t seen = ptx::ld_relaxed_sys(words + source);
      is_here = is_here && has_reached(signal_epoch(seen), signals.epoch);
    }
    bool has_failed = false;
    if (!is_here && polls % 64 == 0) {
      for (int source = 0; source < signals.num_sources; ++source) {
        has_failed = has_failed || ptx::ld_relaxed_sys(signals.failed + source) != 0;
      }
    }
    if (is_here || has_failed) {
      break;
    }
  }
  // Together with the loads above, pairs with tell_wave, which fences and then stores the words.
  ptx::fence_acq_rel_sys();
}

// The last wave that an expert needs.
__device__ inline int last_wave_of(const RowArrivals::Signals& signals, int expert) {
  return 1 + expert / signals.experts_per_wave;
}

}  // namespace moebius::cuda
