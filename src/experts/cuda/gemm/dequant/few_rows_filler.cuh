// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One thread of this warp finds the items of few_rows_gemm.cu, tells the warps that multiply where
// they are, and requests their stages.  It has few instructions per stage, since it shares a
// scheduler with these warps.
#pragma once

#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"

namespace moebius::cuda::few_rows {

// REQUIRES: one thread of the block makes it and calls its functions.
template <Code kCode, int kRows>
class Filler {
 public:
  // `places` has room for kMostPlaces.
  __device__ Filler(const Args& args,
                    const TileStarts& starts,
                    uint8_t* stages,
                    Barriers& barriers,
                    Place* places)
      : p_(args),
        starts_(starts),
        places_(places),
        num_items_(num_items(args, starts)),
        item_(static_cast<int>(blockIdx.x)),
        stages_(ptx::shared_address(stages)),
        scale_slots_(stages_ + static_cast<uint32_t>(p_.num_stages * p_.stage_bytes)),
        unit_slots_(scale_slots_ + static_cast<uint32_t>(p_.scale_slots * p_.scale_slot_bytes)),
        sum_slots_(unit_slots_ + static_cast<uint32_t>(all_unit_bytes(kRows))),
        full_(ptx::shared_address(barriers.full)),
        empty_(ptx::shared_address(barriers.empty)),
        scales_full_(ptx::shared_address(barriers.scales_full)),
        scales_empty_(ptx::shared_address(barriers.scales_empty)) {
    if (item_ < num_items_) {
      begin_item();
    }
  }

  // Requests the first codes, while the kernel before may still write rows.
  __device__ void request_first_codes() {
    if (item_ < num_items_) {
      num_first_ = min(p_.num_stages, p_.steps);
      for (int step = 0; step < num_first_; ++step) {
        request_scales(step);
        request_codes(step);
        ring_.advance(p_.num_stages);
      }
      ring_ = {};
    }
  }

  __device__ void run() {
    while (item_ < num_items_) {
#pragma unroll 1
      for (int step = 0; step < p_.steps; ++step) {
        if (step >= num_first_) {
          request_scales(step);
          // pairs with Worker::release: the stage has been read.
          ptx::mbarrier_sleep_parity(empty_ + ring_.slot * uint32_t{sizeof(uint64_t)},
                                     ring_.parity ^ 1);
          request_codes(step);
        }
        request_rows(step);
        ring_.advance(p_.num_stages);
      }
      num_first_ = 0;
      item_ += static_cast<int>(gridDim.x);
      if (item_ < num_items_) {
        begin_item();
      }
    }
  }

 private:
  using S = Step<kCode, kRows>;
  static constexpr bool kBringsUnits = kCode == Code::kU4 && unit_slot_bytes(kRows) > 0;
  static constexpr bool kBringsSums = has_row_sums(kCode, kRows);
  static constexpr Block kBlock = block_of(kRows);

  __device__ __forceinline__ void begin_item() {
    // Small tiles of int8 took 2 to 3 % longer by even shares, and others 3 % less.
    constexpr bool kIsEven = kRows > kSmallFewRowsTile || kCode != Code::kI8;
    const TilePlace tile = kIsEven ? find_even_tile(p_.rows, starts_, item_ / p_.across)
                                   : find_tile(p_.rows, starts_, item_ / p_.across, kRows);
    place_ = {tile.group, item_ % p_.across * (kBlock.columns() >> p_.team_shift),
              static_cast<int>(min(tile.end - tile.begin, int64_t{kRows})),
              static_cast<int>(tile.begin)};
    column_ = place_.group * p_.n + place_.column;
    next_scales_ = scale_byte_ = 0;
    const int rows = S::multiplied(place_.rows);
    x_ = &p_.x[(rows - fewest_multiplied(kRows)) / kBlock.rows_step];
    const int row_bytes = rows * (S::kSlabs / 2 * kTileRowBytes);
    stage_bytes_ = static_cast<uint32_t>(kBlock.code_bytes() + (row_bytes << p_.team_shift));
    if constexpr (kBringsSums) {
      stage_bytes_ +=
          static_cast<uint32_t>(p_.sums_of_stage * sums_of_box(kRows)) * uint32_t{sizeof(float)};
    }
  }
  __device__ __forceinline__ uint32_t stage() const {
    return stages_ + static_cast<uint32_t>(ring_.slot * p_.stage_bytes);
  }
  __device__ __forceinline__ uint32_t full() const {
    return full_ + ring_.slot * uint32_t{sizeof(uint64_t)};
  }
  __device__ __forceinline__ void request_codes(int step) {
    uint32_t bytes = stage_bytes_;
    if (step == 0) {
      places_[place_ring_.slot] = place_;
      if constexpr (kBringsUnits) {
        units_ = unit_slots_ + static_cast<uint32_t>(place_ring_.slot * unit_slot_bytes(kRows));
        bytes += p_.row_units != nullptr ? unit_bytes(kRows) : 0;
      }
      place_ring_.advance(kMostPlaces);
    }
    ptx::mbarrier_arrive_expect_tx(full(), bytes);
    const int team_bytes = kBlock.code_bytes() >> p_.team_shift;
#pragma unroll 1
    for (int team = 0; team < 1 << p_.team_shift; ++team) {
      ptx::tensor_load(stage() + static_cast<uint32_t>(team * team_bytes), &p_.codes,
                       ((step << p_.team_shift) + team) * kStepBytes, column_, full());
    }
  }
  // Does so where a chunk begins with this step.
  __device__ __forceinline__ void request_scales(int step) {
    if (!p_.brings_scales || step < next_scales_) {
      return;
    }
    const uint32_t at = scale_ring_.slot * uint32_t{sizeof(uint64_t)};
    // pairs with Scales::next_chunk: the slot has been read.
    ptx::mbarrier_sleep_parity(scales_empty_ + at, scale_ring_.parity ^ 1);
    const auto bytes = static_cast<uint32_t>(p_.scale_slot_bytes);
    ptx::mbarrier_arrive_expect_tx(scales_full_ + at, bytes);
    ptx::tensor_load(scale_slots_ + static_cast<uint32_t>(scale_ring_.slot) * bytes, &p_.scales,
                     scale_byte_, column_, scales_full_ + at);
    scale_ring_.advance(p_.scale_slots);
    next_scales_ += p_.chunk_steps;
    scale_byte_ += p_.scale_bytes;
  }
  __device__ __forceinline__ void request_rows(int step) const {
    if (kBringsUnits && step == 0 && p_.row_units != nullptr) {
      ptx::tensor_load(units_, &p_.units, 0, place_.row / kUnitsOfChunk, full());
    }
    if constexpr (kBringsSums) {
      const SumPlace sums = sum_place(place_.row);
      ptx::tensor_load(sum_slots_ + static_cast<uint32_t>(ring_.slot * p_.sum_slot_bytes), &p_.sums,
                       sums.copy * p_.sum_rows + sums.first, step * p_.sums_of_stage, full());
    }
    const int tile = (step << p_.team_shift) * (S::kSlabs / 2);
    ptx::tensor_load(stage() + kBlock.code_bytes(), x_, {0, place_.row, tile, 0, 0}, full());
  }

  const Args& p_;
  const TileStarts& starts_;
  Place* places_;
  int num_items_;
  int item_;
  uint32_t stages_;
  uint32_t scale_slots_;
  uint32_t unit_slots_;
  uint32_t sum_slots_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t scales_full_;
  uint32_t scales_empty_;
  Ring ring_;
  Ring scale_ring_;
  Ring place_ring_;
  int num_first_ = 0;  // steps of the first item whose codes have been requested

  // Of the item.
  Place place_;
  int column_ = 0;
  int next_scales_ = 0;  // the step with which the next chunk of scales begins
  int scale_byte_ = 0;   // of a column's scales, where it begins
  const CUtensorMap* x_ = nullptr;
  uint32_t stage_bytes_ = 0;
  uint32_t units_ = 0;  // the slot of the rows' units
};

}  // namespace moebius::cuda::few_rows
