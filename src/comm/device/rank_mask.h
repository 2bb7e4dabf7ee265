// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Sets of ranks, a bit for each rank, for hosts and kernels.
//
// Kernels whose hot loops keep such a set in registers are compiled twice: for up to 64 ranks, with
// sets of one word, and for up to kMaxCudaRanks.  So more ranks cost nothing where there are few.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/cuda/signal_word.h"  // MOEBIUS_HOST_DEVICE

namespace moebius::comm {

inline constexpr int kMaxCudaRanks = 160;

template <int kNumWords>
struct RankMaskOf {
  static constexpr int kWords = kNumWords;
  static constexpr int kMaxRanks = 64 * kWords < kMaxCudaRanks ? 64 * kWords : kMaxCudaRanks;
  static constexpr int kGroups = (kMaxRanks + 31) / 32;  // of 32 ranks, one for each lane of a warp

  uint64_t words[static_cast<unsigned>(kWords)];

  MOEBIUS_HOST_DEVICE constexpr bool has(int rank) const {
    return (words[word_of(rank)] >> bit_of(rank) & 1) != 0;
  }
  // The same for rank 32 * group + lane, whose word is known when the group is.
  MOEBIUS_HOST_DEVICE constexpr bool has(int group, int lane) const {
    return (words[group / 2] >> (group % 2 * 32 + lane) & 1) != 0;
  }
  MOEBIUS_HOST_DEVICE constexpr bool is_empty() const {
    uint64_t all = 0;
    for (int w = 0; w < kWords; ++w) {
      all |= words[w];
    }
    return all == 0;
  }
  MOEBIUS_HOST_DEVICE constexpr void add(int rank) {
    words[word_of(rank)] |= uint64_t{1} << bit_of(rank);
  }
  // Removes the ranks of the other mask, which may have more words.
  template <int kOther>
  MOEBIUS_HOST_DEVICE constexpr void remove(const RankMaskOf<kOther>& other) {
    for (int w = 0; w < kWords; ++w) {
      words[w] &= ~other.words[w];
    }
  }

 private:
  MOEBIUS_HOST_DEVICE static constexpr unsigned word_of(int rank) {
    return kWords == 1 ? 0 : static_cast<unsigned>(rank) / 64;
  }
  MOEBIUS_HOST_DEVICE static constexpr unsigned bit_of(int rank) {
    return kWords == 1 ? static_cast<unsigned>(rank) : static_cast<unsigned>(rank) % 64;
  }
};

inline constexpr int kWideWords = (kMaxCudaRanks + 63) / 64;
// For any number of ranks.
using RankMask = RankMaskOf<kWideWords>;

// The words of the masks with which kernels for so many ranks are compiled.
MOEBIUS_HOST_DEVICE constexpr int rank_mask_words(int num_ranks) {
  return num_ranks <= 64 ? 1 : kWideWords;
}
// Returns visit(n), where n is an std::integral_constant of rank_mask_words(num_ranks).
template <typename Visit>
auto with_rank_mask_words(int num_ranks, const Visit& visit) {
  return rank_mask_words(num_ranks) == 1 ? visit(std::integral_constant<int, 1>{})
                                         : visit(std::integral_constant<int, kWideWords>{});
}

}  // namespace moebius::comm
