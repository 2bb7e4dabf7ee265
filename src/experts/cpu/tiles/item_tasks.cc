// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/item_tasks.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kTasksPerThread = 8;  // of a stage that is split; cores differ in speed

int64_t num_split_items(int64_t num_items, int64_t num_threads) {
  if (num_threads == 1) {
    return 0;
  }
  return num_items < kItemsPerThread * num_threads ? num_items : num_threads;
}

int64_t parts_wanted(int64_t num_split, int64_t num_threads) {
  return num_split > 0 ? ceil_div(kTasksPerThread * num_threads, num_split) : 1;
}

}  // namespace

ItemTasks::Parts::Parts(int64_t blocks, int64_t wanted)
    : num_blocks(blocks),
      size(ceil_div(blocks, std::min(wanted, blocks))),
      num_parts(ceil_div(blocks, size)) {}

ItemTasks::ItemTasks(int64_t num_items,
                     int64_t num_threads,
                     int64_t num_blocks1,
                     int64_t num_blocks2)
    : num_whole_(num_items - num_split_items(num_items, num_threads)),
      num_split_(num_items - num_whole_),
      gemm1_(num_blocks1, parts_wanted(num_split_, num_threads)),
      gemm2_(num_blocks2, parts_wanted(num_split_, num_threads)) {}

ItemTask ItemTasks::operator[](int64_t i) const {
  if (i < num_whole_) {
    return {ItemStage::kWhole, i};
  }
  i -= num_whole_;
  if (i < num_split_) {
    return {ItemStage::kPack, num_whole_ + i, i};
  }
  i -= num_split_;
  const bool is_first = i < num_split_ * gemm1_.num_parts;
  const Parts& parts = is_first ? gemm1_ : gemm2_;
  i -= is_first ? 0 : num_split_ * gemm1_.num_parts;
  const int64_t split = i / parts.num_parts;
  const int64_t begin = i % parts.num_parts * parts.size;
  return {is_first ? ItemStage::kGemm1 : ItemStage::kGemm2, num_whole_ + split, split, begin,
          std::min(parts.num_blocks, begin + parts.size)};
}

}  // namespace moebius::cpu
