// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warps that multiply in few_rows_gemm.cu, whose head says what is where and why.  How they
// store is in few_rows_store.cuh.
#pragma once

#include <cstdint>

#include "core/cuda/mma.cuh"
#include "core/cuda/wgmma.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_scales.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda::few_rows {

// D: a Decoding.  kRows: the most rows of a tile.
template <typename D, int kRows>
class Worker {
 public:
  // `places` is what Filler fills, and so is `units`, which has slots of unit_slot_bytes(), and
  // behind them those of sums of rows.  `sums` has room for the sums of all teams but the first.
  __device__ Worker(const Args& args,
                    uint8_t* stages,
                    Barriers& barriers,
                    const Place* places,
                    const uint8_t* units,
                    float* sums)
      : p_(args),
        places_(places),
        stages_(ptx::opaque(ptx::shared_address(stages))),
        units_(ptx::shared_address(units)),
        full_(ptx::opaque(ptx::shared_address(barriers.full))),
        empty_(ptx::opaque(ptx::shared_address(barriers.empty))),
        team_sums_(sums),
        warp_column_(beside_ * kGroupColumns + warp_ % kGroupWarps * kOwn),
        scales_(args, stages_, barriers, {team_, warp_column_ + quad_, part_, lane_}) {
    // The lane's words are 16 bytes of column quad_, or what ldmatrix makes of those of lane % 8.
    const int own = warp_ % kGroupWarps * kOwn + (D::kByChunks ? quad_ : lane_ % 8);
    const int chunk = (D::kByChunks ? part_ : lane_ / 8) ^ (own / 2 % 4);
    codes_ = stages_ + static_cast<uint32_t>(group_ * kBoxBytes + own * kStepBytes + chunk * 16);
    const int row = lane_ % 8;
    rows_ = stages_ + static_cast<uint32_t>(kBlock.code_bytes() + row * kTileRowBytes +
                                            (lane_ / 8 ^ row) * 16);
  }

  __device__ void run(int num_items) {
    int item = static_cast<int>(blockIdx.x);
    if (item >= num_items) {
      return;
    }
    load_next();
    start();
    while (item < num_items) {
      Sums sums = {};
      item += static_cast<int>(gridDim.x);
      const bool goes_on = item < num_items;
      if constexpr (!kByWarps) {
        multiply(goes_on, sums);
      } else if (rows_multiplied_ == kEight) {
        multiply_by_warps<1>(goes_on, sums);
      } else {
        multiply_by_warps<2>(goes_on, sums);
      }
      const Place place = places_[place_ring_.slot];
      const uint32_t units =
          units_ + static_cast<uint32_t>(place_ring_.slot * unit_slot_bytes(kRows) +
                                         place.row % kUnitsOfChunk * int{sizeof(float)});
      place_ring_.advance(kMostPlaces);
      if (goes_on) {
        start();  // its scales come while the sums are stored
      }
      finish(place, units, sums);
    }
  }

 private:
  using S = Step<D::kCode, kRows>;
  using Sums = float[kRows / 2];
  static constexpr Block kBlock = block_of(kRows);
  static constexpr bool kByWarps = kRows <= kMmaRows;
  static constexpr bool kIsLarge = kRows > kSmallFewRowsTile;
  static constexpr bool kFolds = D::kFolds;
  static constexpr bool kHasUnits = D::kCode == Code::kU4;  // see Args::row_units
  static constexpr int kFewest = fewest_multiplied(kRows);
  // Sums are scaled and added to totals where their scales change.  In large tiles they are
  // multiplied by the ratio of the scales before and after instead, which takes half the registers.
  static constexpr bool kRescales = kIsLarge && D::kChanges == Changes::kBetweenSteps;
  static constexpr bool kHasTotals = !kRescales && D::kChanges != Changes::kNever;

  // Returns the row in the tile of the lane's sum j.
  __device__ __forceinline__ int row_of(int j) const { return j / 4 * 8 + part_ * 2 + j % 2; }
  // Returns the first or second column of the lane.
  __device__ __forceinline__ int column_of(const Place& place, int i) const {
    return place.column + warp_column_ + quad_ + 8 * i;
  }

  // Starts the item whose first stage has been loaded.
  __device__ __forceinline__ void start() {
    const Place& place = places_[place_ring_.slot];
    rows_multiplied_ = ptx::uniform(S::multiplied(place.rows));
    scales_.start(place.group, column_of(place, 0));
    if constexpr (D::kIsWholeInt4) {
      const int first = team_ * (p_.sums_of_stage >> p_.team_shift) * sums_of_box(kRows);
      row_sums_ =
          units_ + static_cast<uint32_t>(all_unit_bytes(kRows) +
                                         (first + sum_place(place.row).skipped + part_ * 2) *
                                             int{sizeof(float)});
    }
    if (kHasUnits && kIsLarge && p_.row_units != nullptr) {
      fetch_units(place);
    }
  }

  // The functions that follow multiply.

  using Words = uint32_t[2][4];     // of a step, for both columns
  using Elements = uint32_t[2][4];  // of a slab, for two products

  __device__ __forceinline__ void load_words(Words& words) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t from =
          codes_ + static_cast<uint32_t>(ring_.slot * p_.stage_bytes) + i * 8 * kStepBytes;
      if constexpr (D::kByChunks) {
        ptx::ld_shared(from, words[i]);
      } else {
        ptx::ldmatrix_x4(words[i], from);
      }
    }
  }

  template <bool kIsSpecial, bool kIsFaint = false>
  __device__ __forceinline__ void decode(const Words& words, int slab, Elements& elements) const {
    uint32_t pairs[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t by = scales_.by(i, slab);
      if constexpr (kIsSpecial && D::kMayBeLarge) {
        by = unfolded_e8m0(by);
      }
      decode_pairs<D, kIsSpecial>(words[i] + slab * S::kWords, by, pairs[i]);
      if constexpr (kIsFaint) {
#pragma unroll
        for (uint32_t& pair : pairs[i]) {
          pair = product(typename D::Element{}, pair, scales_.faint(i));
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        elements[half][j] = pairs[j % 2][2 * half + j / 2];
        if constexpr (D::kIsWholeInt4) {
          // Otherwise ptxas makes elements where wgmma has begun, and then runs products one by
          // one.
          elements[half][j] = ptx::opaque(elements[half][j]);
        }
      }
    }
  }

  // Adds sums * scales to totals.
  template <int kSize>
  __device__ __forceinline__ static void add_scaled(const float (&scale)[2],
                                                    const float (&sums)[kSize],
                                                    float (&totals)[kSize]) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      totals[j] = __fmaf_rn(sums[j], scale[j / 2 % 2], totals[j]);
    }
  }

  __device__ __forceinline__ static void scale(const float (&by)[2], Sums& sums) {
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      sums[j] *= by[j / 2 % 2];
    }
  }

  // Takes the scales and zero points that begin with a slab of the stage.  Where these are not in
  // the elements, it sets sums to those with which they begin, see Args::sums.
  template <int kEights>
  __device__ __forceinline__ void take_scales(int slab, float (&sums)[kEights][4]) {
    scales_.take_factors(slab);
    if constexpr (D::kIsWholeInt4) {
      const int block = slab * kSlab >> p_.sum_shift;
      const uint32_t from =
          row_sums_ + static_cast<uint32_t>(ring_.slot * p_.sum_slot_bytes +
                                            block * sums_of_box(kRows) * int{sizeof(float)});
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        ptx::ld_shared_pair(from + e * kEight * uint32_t{sizeof(float)}, sums[e][0], sums[e][1]);
        sums[e][2] = sums[e][0];
        sums[e][3] = sums[e][1];
      }
      if (scales_.has_zero_points()) {
        scales_.take_zeros(slab);
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[e][j] *= __uint_as_float(scales_.by(j / 2, slab));
          }
        }
      }
    } else if constexpr (D::kHasZeros) {
      scales_.take_zeros(slab);
    }
  }

  // Says that the stage behind has been read, by all lanes.
  __device__ __forceinline__ void release() {
    if (lane_ == 0) {
      ptx::mbarrier_arrive(held_);  // pairs with Filler::run
    }
  }

  // Waits for the codes and rows of the next stage, and loads the codes.
  __device__ __forceinline__ void load_next() {
    // pairs with the copies that Filler requests.
    ptx::mbarrier_sleep_parity(full_ + ring_.slot * uint32_t{sizeof(uint64_t)}, ring_.parity);
    load_words(words_);
  }

  // Multiplies half a slab by its rows, whose descriptor has this low word.
  template <int kN>
  __device__ __forceinline__ void multiply_half(float (&sums)[kN / 2],
                                                const uint32_t (&elements)[4],
                                                uint32_t low,
                                                bool accumulates) const {
    const uint64_t rows = ptx::wgmma_descriptor(low, descriptor_high_);
    if constexpr (D::kIsBF16) {
      ptx::Wgmma<kN>::bf16(sums, elements, rows, accumulates);
    } else {
      ptx::Wgmma<kN>::f16(sums, elements, rows, accumulates);
    }
  }
  // Multiplies slabs from `first` on by the rows of the item, at most kN, which begin at the
  // descriptor with this low word.
  template <int kN, int kSlabs>
  __device__ __forceinline__ void multiply_slabs(Sums& all,
                                                 const Elements (&elements)[kSlabs],
                                                 int first,
                                                 uint32_t rows,
                                                 bool accumulates) const {
    if constexpr (kN > kFewest) {
      if (rows_multiplied_ < kN) {
        multiply_slabs<kN - kBlock.rows_step>(all, elements, first, rows, accumulates);
        return;
      }
    }
    auto& sums = reinterpret_cast<float(&)[kN / 2]>(all);
    constexpr uint32_t kTile = kN * kTileRowBytes / ptx::kDescriptorUnit;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) {
      const auto slab = static_cast<uint32_t>(first + i);
      const uint32_t low = rows + slab / 2 * kTile + slab % 2 * 4;
      multiply_half<kN>(sums, elements[i][0], low, accumulates || i > 0);
      multiply_half<kN>(sums, elements[i][1], low + 2, true);
    }
    ptx::wgmma_commit();
  }
  // Multiplies half a slab by eight rows, by a warp for itself.
  __device__ __forceinline__ static void multiply_half(float (&sums)[4],
                                                       const uint32_t (&elements)[4],
                                                       uint32_t x0,
                                                       uint32_t x1) {
    if constexpr (D::kIsBF16) {
      ptx::mma_bf16(sums, elements, x0, x1);
    } else {
      ptx::mma_f16(sums, elements, x0, x1);
    }
  }

  // Multiplies the item that has been started.  `goes_on`: another one follows.
  __device__ __forceinline__ void multiply(bool goes_on, Sums& result) {
    // Slabs that are decoded and multiplied together: either as many of a step as registers hold,
    // while other warpgroups multiply, or one while the one before is multiplied.
    constexpr bool kTogether =
        !kIsLarge && (kFolds || (D::kCode == Code::kU4 && D::kChanges == Changes::kBetweenSteps));
    constexpr int kUnit = !kTogether ? 1 : kFolds || kRows <= 48 ? S::kSlabs : S::kSlabs / 2;
    constexpr int kUnits = kTogether ? 1 : 2;  // in registers
    Sums sums = {};
    Sums totals = {};
    const auto tile =
        static_cast<uint32_t>(rows_multiplied_ * (kTileRowBytes / ptx::kDescriptorUnit));
    const uint32_t first_rows = ptx::uniform(ptx::opaque(
        ptx::wgmma_descriptor_low(stages_ + static_cast<uint32_t>(kBlock.code_bytes())) +
        static_cast<uint32_t>(team_ * (S::kSlabs / 2)) * tile));
    Elements elements[kUnits][kUnit];
    scales_.begin();
    int step = 0;
#pragma unroll 1
    while (step < p_.steps) {
      scales_.next_chunk();
      const int chunk_end = min(step + p_.chunk_steps, p_.steps);
#pragma unroll 1
      for (; step < chunk_end; ++step) {
        const uint32_t rows = first_rows + static_cast<uint32_t>(ring_.slot * stage_units_);
        bool is_special = D::kSkipsZeros && !scales_.subtracts();
        if constexpr (kFolds) {
          scales_.take_folded();
          is_special = scales_.is_large();
        } else if constexpr (kRescales) {
          scales_.take_ratios();
        }
#pragma unroll
        for (int first = 0; first < S::kSlabs; first += kUnit) {
          auto& own = elements[first / kUnit % kUnits];
          if constexpr (kTogether) {
            wait_for_products<0>(first == 0 && step > 0);
          }
          const bool ends = scales_.ends_before(first);
          const auto end_sums = [&] {
            if (ends) {
              ptx::wgmma_wait<0>();
              ptx::wgmma_pin(sums);
              if constexpr (kHasTotals) {
                add_scaled(scales_.factors(), sums, totals);
                if constexpr (D::kIsWholeInt4) {
                  take_scales(first, reinterpret_cast<float(&)[kRows / kEight][4]>(sums));
                } else {
                  scales_.take_factors(first);
                }
              } else if (scales_.changes()) {
                scale(scales_.ratios(), sums);
              }
            }
          };
          if constexpr (kTogether) {
            end_sums();  // what it loads comes meanwhile
          }
          // Warps of a warpgroup may differ in this, so the branch is not around wgmma, which they
          // take together.
          if (kRescales && scales_.has_faint()) {
#pragma unroll
            for (int i = 0; i < kUnit; ++i) {
              decode<false, kRescales>(words_, first + i, own[i]);
            }
          } else if (is_special) {
#pragma unroll
            for (int i = 0; i < kUnit; ++i) {
              decode<true>(words_, first + i, own[i]);
            }
          } else {
#pragma unroll
            for (int i = 0; i < kUnit; ++i) {
              const int slab = first + i;
              if (D::kHasZeros && kHasTotals && !D::kIsWholeInt4 && scales_.ends_before(slab)) {
                scales_.take_zeros(slab);
              }
              decode<false>(words_, slab, own[i]);
            }
          }
          if constexpr (!kTogether) {
            end_sums();
          }
          ptx::wgmma_pin(sums);
          multiply_slabs<kRows>(sums, own, first, rows, kRescales || D::kIsWholeInt4 || !ends);
          if (first + kUnit == S::kSlabs) {
            if constexpr (kFolds) {
              scales_.fetch_folded(step + 1 < chunk_end);  // those of the next step
            }
            held_ = empty_ + ring_.slot * uint32_t{sizeof(uint64_t)};
            ring_.advance(p_.num_stages);
            if (goes_on || step + 1 < p_.steps) {
              load_next();  // while products are under way
            }
          }
          if constexpr (!kTogether) {
            wait_for_products<1>(first == 0 && step > 0);
          }
        }
      }
      scales_.end_chunk();
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(sums);
    release();
    if constexpr (kHasTotals) {
      add_scaled(scales_.factors(), sums, totals);
    } else if constexpr (!kFolds) {
      scale(scales_.factors(), sums);
    }
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      result[j] = kHasTotals ? totals[j] : sums[j];
    }
  }

  // Waits until all but the latest kPending groups of products are complete.  If these are all of
  // the step before (`ends_step`), its stage is released.
  template <int kPending>
  __device__ __forceinline__ void wait_for_products(bool ends_step) {
    ptx::wgmma_wait<kPending>();
    if (ends_step) {
      release();
    }
  }

  // The same by each warp for itself, for an item of up to 8 * kEights rows.
  template <int kEights>
  __device__ __forceinline__ void multiply_by_warps(bool goes_on, Sums& result) {
    float sums[kEights][4] = {};
    float totals[kEights][4] = {};
    scales_.begin();
    int step = 0;
#pragma unroll 1
    while (step < p_.steps) {
      scales_.next_chunk();
      const int end = min(step + p_.chunk_steps, p_.steps);
      const bool has_next = goes_on || end < p_.steps;
      if (D::kSkipsZeros ? !scales_.subtracts() : scales_.is_large()) {
        multiply_steps<true>(end - step, has_next, sums, totals);
      } else {
        multiply_steps<false>(end - step, has_next, sums, totals);
      }
      scales_.end_chunk();
      step = end;
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if constexpr (!kFolds) {
        add_scaled(scales_.factors(), sums[e], totals[e]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        result[e * 4 + j] = kFolds ? sums[e][j] : totals[e][j];
      }
    }
  }

  // has_next: further steps follow.
  template <bool kIsSpecial, int kEights>
  __device__ __forceinline__ void multiply_steps(int steps,
                                                 bool has_next,
                                                 float (&sums)[kEights][4],
                                                 float (&totals)[kEights][4]) {
    constexpr uint32_t kTile = kEights * 8 * kTileRowBytes;
    const uint32_t first_rows = rows_ + static_cast<uint32_t>(team_ * (S::kSlabs / 2)) * kTile;
#pragma unroll 1
    for (; steps > 0; --steps) {
      const uint32_t rows = first_rows + static_cast<uint32_t>(ring_.slot * p_.stage_bytes);
      if constexpr (kFolds) {
        scales_.take_folded();
      }
#pragma unroll
      for (int slab = 0; slab < S::kSlabs; ++slab) {
        uint32_t x[kEights][4];
#pragma unroll
        for (uint32_t e = 0; e < kEights; ++e) {
          // The second half of a swizzled row of 128 bytes is where bit 6 of the address differs.
          const uint32_t half = slab % 2 == 0 ? rows : rows ^ 64;
          ptx::ldmatrix_x4(x[e],
                           half + static_cast<uint32_t>(slab / 2) * kTile + e * 8 * kTileRowBytes);
        }
        if (scales_.ends_before(slab)) {
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            add_scaled(scales_.factors(), sums[e], totals[e]);
#pragma unroll
            for (float& sum : sums[e]) {
              sum = 0.0f;
            }
          }
          take_scales(slab, sums);
        }
        Elements elements;
        decode<kIsSpecial>(words_, slab, elements);
        if (slab + 1 == S::kSlabs) {
          if constexpr (kFolds) {
            scales_.fetch_folded(steps > 1);  // those of the next step
          }
          held_ = empty_ + ring_.slot * uint32_t{sizeof(uint64_t)};
          __syncwarp();
          release();
          ring_.advance(p_.num_stages);
          if (has_next || steps > 1) {
            load_next();
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            multiply_half(sums[e], elements[half], x[e][2 * half], x[e][2 * half + 1]);
          }
        }
      }
    }
  }

  // The functions that follow store: few_rows_store.cuh has them.

  __device__ __forceinline__ void add_teams(Sums& sums) const;
  __device__ __forceinline__ float column_factor(const Place& place, int n) const;
  __device__ __forceinline__ float row_factor(const Place& place, int row) const;
  // Lane l loads the units of rows l, l + kWarp and so on of a large tile.
  static constexpr int kUnitsOfLane = kRows / kWarp;
  __device__ __forceinline__ const float* unit(const Place& place, int i) const;
  __device__ __forceinline__ void fetch_units(const Place& place) const;
  // Multiplies by the units of the rows.  That of a small tile's first lies at the address `first`.
  __device__ __forceinline__ void multiply_by_units(const Place& place,
                                                    uint32_t first,
                                                    Sums& sums) const;
  // `units`: see multiply_by_units().
  __device__ __forceinline__ void finish(const Place& place, uint32_t units, Sums& sums) const;
  __device__ __forceinline__ void store_elements(const Place& place, const Sums& sums) const;
  template <typename Out>
  __device__ __forceinline__ void store_pairs(const Place& place, const Sums& sums) const;

  const Args& p_;
  const Place* places_;
  // These shared addresses are kept, since the compiler would compute them again and again.
  uint32_t stages_;
  uint32_t units_;
  uint32_t full_;
  uint32_t empty_;
  float* team_sums_;

  int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  int warp_ = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  int group_ = warp_ / kGroupWarps;
  int quad_ = lane_ / 4;  // its columns are quad_ and quad_ + 8 of the warp's
  int part_ = lane_ % 4;  // which eight of every slab it has
  int side_by_side_ = kBlock.groups >> p_.team_shift;  // warpgroups of a team
  int team_ = group_ / side_by_side_;
  int beside_ = group_ % side_by_side_;  // the place of the warpgroup in its team
  int warp_column_;
  uint32_t codes_;  // those of the lane in the first stage
  uint32_t rows_;   // what the lane tells ldmatrix of the first stage's rows

  uint32_t descriptor_high_ = ptx::uniform(ptx::kept(ptx::kDescriptorHigh, p_.k));
  int stage_units_ = ptx::uniform(p_.stage_bytes / int{ptx::kDescriptorUnit});

  Ring ring_;
  Ring place_ring_;
  int rows_multiplied_ = 0;  // for the item that has been started
  uint32_t held_ = 0;        // the barrier of the stage before
  uint32_t row_sums_ = 0;    // of the lane's rows in the first slot, see Args::sums
  Words words_;              // of the next step

  Scales<D, chunk_bytes<D>(kRows)> scales_;
};

}  // namespace moebius::cuda::few_rows
