// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of cuda_group_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/signal_word.h"  // MOEBIUS_HOST_DEVICE
#include "moebius/stream.h"

namespace moebius {

// Word i that rank `source` stores to rank `owner` in this round; it is never 0.
MOEBIUS_HOST_DEVICE inline uint32_t word_of(int round, int source, int owner, int64_t i) {
  const uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u ^
                         static_cast<uint32_t>(round * 131071 + source * 8191 + owner * 127);
  return mixed | 1u;
}

struct StoreToPeers {
  std::byte* const* peers;  // windows: [num_ranks] flags of 8 bytes, then [num_ranks][num_words]
  int rank;
  int num_ranks;
  int round;
  int64_t num_words;
  uint32_t* received;  // [num_ranks][num_words] the words of the own window after all flags
  int* missing;        // mapped host memory: the rank whose flag did not come, else -1
  int64_t patience_ns;
};
void launch_store_to_peers(const Stream& stream, const StoreToPeers& args);
void load_store_to_peers(int device);

inline int64_t window_bytes(int num_ranks, int64_t num_words) {
  return num_ranks * (8 + num_words * 4);
}

}  // namespace moebius
