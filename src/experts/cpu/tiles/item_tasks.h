// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The tasks of a call's items, in the order in which threads take them.  Most items are one task
// each, from gather to output.  The last items, one per thread, are split: one task packs them, and
// both GEMMs are cut into column blocks, so that all threads end together, however fast each is.
// Where there are few items, all of them are split; a single thread splits none.
#pragma once

#include <cstdint>

#include "core/countdown.h"

namespace moebius::cpu {

// With at least this many items per thread most items are whole tasks.
inline constexpr int64_t kItemsPerThread = 2;

enum class ItemStage : uint8_t { kWhole, kPack, kGemm1, kGemm2 };

struct ItemTask {
  ItemStage stage;
  int64_t item;
  int64_t split = -1;  // which of the split items, or -1
  int64_t begin = 0;   // column blocks of kGemm1 and kGemm2
  int64_t end = 0;
};

class ItemTasks {
 public:
  ItemTasks(int64_t num_items, int64_t num_threads, int64_t num_blocks1, int64_t num_blocks2);

  int64_t num_whole() const { return num_whole_; }
  int64_t num_split() const { return num_split_; }
  // The number of tasks of a split item's GEMM1.
  int64_t num_parts1() const { return gemm1_.num_parts; }

  int64_t size() const {
    return num_whole_ + num_split_ * (1 + gemm1_.num_parts + gemm2_.num_parts);
  }
  // A task comes after all tasks of its item's earlier stages: Countdown relies on it.
  ItemTask operator[](int64_t i) const;

 private:
  struct Parts {
    Parts(int64_t blocks, int64_t wanted);
    int64_t num_blocks;
    int64_t size;  // column blocks of each but the last
    int64_t num_parts;
  };

  int64_t num_whole_;
  int64_t num_split_;
  Parts gemm1_;
  Parts gemm2_;
};

// Counts how far a split item has come.
struct SplitProgress {
  explicit SplitProgress(int64_t num_parts1) : packed(1), parts1(num_parts1), activated(1) {}

  Countdown packed;     // panels of GEMM1
  Countdown parts1;     // tasks of GEMM1
  Countdown activated;  // panels of GEMM2
};

}  // namespace moebius::cpu
