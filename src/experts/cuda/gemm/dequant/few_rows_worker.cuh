// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warps that multiply in few_rows_gemm.cu, whose head says what is where and why.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/cuda/mma.cuh"
#include "core/cuda/wgmma.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda::few_rows {

// A scale as it lies in memory, and its value; uint8_t is e8m0.  Why in 32 bits: registers of fewer
// bits cost moves, which wait for what is loaded.
template <typename Scale>
__device__ __forceinline__ uint32_t load_scale(const Scale* from) {
  if constexpr (sizeof(Scale) == 4) {
    return __float_as_uint(*from);
  } else if constexpr (sizeof(Scale) == 2) {
    return *reinterpret_cast<const uint16_t*>(from);
  } else {
    return *from;
  }
}
template <typename Scale>
__device__ __forceinline__ float scale_value(uint32_t bits) {
  if constexpr (sizeof(Scale) == 4) {
    return __uint_as_float(bits);
  } else if constexpr (sizeof(Scale) == 2) {
    const auto half = static_cast<uint16_t>(bits);
    return load1(reinterpret_cast<const Scale*>(&half));
  } else {
    return e8m0_to_float(static_cast<uint8_t>(bits));
  }
}

// Scale: uint8_t is e8m0, uint16_t is two neighbours of e4m3.  kRows: the most rows of a tile.
template <Code kCode, typename Scale, int kRows>
class Worker {
 public:
  // `sums` has room for the sums of all teams but the first.
  __device__ Worker(
      const Args& args, const TileStarts& starts, uint8_t* stages, Barriers& barriers, float* sums)
      : p_(args),
        items_{args, starts},
        stages_(ptx::opaque(ptx::shared_address(stages))),
        full_(ptx::opaque(ptx::shared_address(barriers.full))),
        empty_(ptx::opaque(ptx::shared_address(barriers.empty))),
        team_sums_(sums) {
    by_[0][0] = by_[1][0] = zeros(p_.w.default_zero_point);
    const int side_by_side = kGroups >> p_.team_shift;
    team_ = group_ / side_by_side;
    beside_ = group_ % side_by_side;
    warp_column_ = beside_ * kGroupColumns + warp_ % kGroupWarps * kOwn;
    // The lane's words are 16 bytes of column quad_, or what ldmatrix makes of those of lane % 8.
    const int own = warp_ % kGroupWarps * kOwn + (S::kByChunks ? quad_ : lane_ % 8);
    const int chunk = (S::kByChunks ? part_ : lane_ / 8) ^ (own / 2 % 4);
    codes_ = stages_ + static_cast<uint32_t>(group_ * kBoxBytes + own * kStepBytes + chunk * 16);
  }

  __device__ void run() {
    const int num_items = items_.num();
    int item = static_cast<int>(blockIdx.x);
    if (item >= num_items) {
      return;
    }
    start(item);
    load_next();
    while (item < num_items) {
      Sums sums = {};
      const Place place = place_;
      item += static_cast<int>(gridDim.x);
      multiply(item < num_items, sums);
      if (item < num_items) {
        start(item);  // its scales come while the sums are stored
      }
      finish(place, sums);
    }
  }

 private:
  using S = Step<kCode, kRows>;
  using Sums = float[kRows / 2];
  static constexpr bool kIsE8m0 = std::is_same_v<Scale, uint8_t>;
  static constexpr bool kIsPair = std::is_same_v<Scale, uint16_t>;
  static constexpr bool kFolds = kIsE8m0 || kIsPair;  // scales go into the elements
  static constexpr bool kHasZeros = kCode == Code::kU4 || kCode == Code::kI8;
  // Of a column and step; a lane has one slab of four by chunks, else all slabs.
  static constexpr int kFactors = !kFolds ? 1 : !S::kByChunks ? S::kSlabs : kIsPair ? 2 : 1;
  static constexpr int kFetches = S::kByChunks ? 1 : kFactors;
  // Slabs whose products are waited for together.
  static constexpr int kUnit = kFolds || kRows <= 48 ? S::kSlabs / 2 : 1;
  static constexpr bool kMayBeLarge = kCode == Code::kE2M1 && kIsE8m0;
  // While a slab is multiplied the next one is decoded, into the other half of the registers.
  static_assert(S::kSlabs / kUnit % 2 == 0);

  __device__ __forceinline__ int column_of(const Place& place, int i) const {
    return place.column + warp_column_ + quad_ + 8 * i;
  }

  // The functions that follow bring scales: those of both columns of a lane.

  __device__ __forceinline__ void start(int item) {
    place_ = items_.find(item);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = min(column_of(place_, i), p_.n - 1);
      first_scale_[i] = ptx::opaque(static_cast<uint32_t>(scale_row(p_.w, place_.group, n)));
    }
    scale_k_ = zero_k_ = team_ * S::kK + (S::kByChunks ? part_ * kSlab : 0);
    fetch_scales();
    if (kHasZeros && has_zeros_ != 0) {
      fetch_zeros();
    }
  }
  __device__ __forceinline__ void fetch_scales() {
    const auto* from = static_cast<const Scale*>(p_.w.scale);
#pragma unroll
    for (int fetch = 0; fetch < kFetches; ++fetch) {
      const int k = scale_k_ + fetch * kSlab;
      const auto at = static_cast<uint32_t>(min(k >> p_.scale_shift, p_.w.scale_cols - 1));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t index = first_scale_[i] + at;
        next_scale_[i][fetch] = load_scale(from + (kIsPair ? index / 2 : index));
      }
    }
  }
  __device__ __forceinline__ void fetch_zeros() {
    const auto at = static_cast<uint32_t>(min(zero_k_ >> p_.scale_shift, p_.w.scale_cols - 1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next_zero_[i] = p_.w.zero_point[first_scale_[i] + at];
    }
  }
  // Returns by how much k grows to the next scales, where those before `slab` of a step end.
  __device__ __forceinline__ int to_next(int slab) const {
    return p_.scaled_k + (ends_ >> slab == 1 ? p_.others_k : 0);
  }
  __device__ __forceinline__ static uint32_t zeros(float zero_point) {
    return both_halves(kCode == Code::kU4 ? 128.0f + zero_point : zero_point);
  }
  // These make what has been fetched that of what is decoded next, or of the sums that begin.
  __device__ __forceinline__ void take_zeros() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      by_[i][0] = zeros(static_cast<float>(next_zero_[i]) - p_.w.zero_point_offset);
    }
  }
  __device__ __forceinline__ void take_factors() {
    if constexpr (!kFolds) {
      scale_[0] = scale_value<Scale>(next_scale_[0][0]);
      scale_[1] = scale_value<Scale>(next_scale_[1][0]);
    }
  }
  // Returns whether the scales are large.
  __device__ __forceinline__ bool take_folded() {
    bool is_large = false;
    if constexpr (kMayBeLarge) {
      is_large = __any_sync(kAll, max(next_scale_[0][0], next_scale_[1][0]) > kLargestE8m0);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kMayBeLarge) {
        by_[i][0] = is_large ? unfolded_e8m0(next_scale_[i][0]) : folded_e8m0(next_scale_[i][0]);
      } else if constexpr (kIsPair) {
        const uint32_t both = folded_e4m3(next_scale_[i][0]);
        by_[i][0] = __byte_perm(both, 0, 0x1010);
        by_[i][1] = __byte_perm(both, 0, 0x3232);
      } else {
#pragma unroll
        for (int fetch = 0; fetch < kFetches; ++fetch) {
          by_[i][fetch] = both_halves(scale_value<Scale>(next_scale_[i][fetch]) / kColumnFactor);
        }
      }
    }
    return is_large;
  }

  // The functions that follow multiply.

  using Words = uint32_t[2][4];     // of a step, for both columns
  using Elements = uint32_t[2][4];  // of a slab, for two products

  __device__ __forceinline__ void load_words(Words& words) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t from =
          codes_ + static_cast<uint32_t>(ring_.slot * p_.stage_bytes) + i * 8 * kStepBytes;
      if constexpr (S::kByChunks) {
        ptx::ld_shared(from, words[i]);
      } else {
        ptx::ldmatrix_x4(words[i], from);
      }
    }
  }

  template <bool kIsSpecial>
  __device__ __forceinline__ void decode(const Words& words, int slab, Elements& elements) const {
    uint32_t pairs[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      decode_pairs<kCode, kFolds, kIsSpecial>(words[i] + slab * S::kWords,
                                              by_[i][slab * kFactors / S::kSlabs], pairs[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        elements[half][j] = pairs[j % 2][2 * half + j / 2];
      }
    }
  }

  // Adds sums * scales to totals.
  __device__ __forceinline__ static void add_scaled(const float (&scale)[2],
                                                    const Sums& sums,
                                                    Sums& totals) {
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      totals[j] = __fmaf_rn(sums[j], scale[j / 2 % 2], totals[j]);
    }
  }

  // Says that the stage behind has been read.
  __device__ __forceinline__ void release() {
    if (lane_ == 0) {
      ptx::mbarrier_arrive(held_);  // pairs with Filler::run
    }
  }

  // Waits for the codes and rows of the next stage, and loads the codes.
  __device__ __forceinline__ void load_next() {
    // pairs with the copies that Filler requests.
    ptx::mbarrier_wait_parity(full_ + ring_.slot * uint32_t{sizeof(uint64_t)}, ring_.parity);
    load_words(words_);
  }

  // Multiplies the item that has been started.  `goes_on`: another one follows.
  __device__ __forceinline__ void multiply(bool goes_on, Sums& result) {
    Sums sums = {};
    Sums totals = {};
    bool accumulates = false;
    const uint32_t tile = row_boxes(place_.rows) * uint32_t{kRowBox * kTileRowBytes / 16};
    uint32_t elements[2][kUnit][2][4];
    scale_[0] = scale_[1] = 0.0f;  // of the sums so far
    if (!kFolds && p_.ends == 0) {
      take_factors();
      if (kHasZeros && has_zeros_ != 0) {
        take_zeros();
      }
    }
#pragma unroll 1
    for (int step = 0; step < p_.steps; ++step) {
      const uint32_t rows =
          ptx::wgmma_descriptor_low(stages_ + kCodeBytes +
                                    static_cast<uint32_t>(ring_.slot * p_.stage_bytes)) +
          team_ * (S::kSlabs / 2) * tile;
      bool is_special = kCode == Code::kI8 && !subtracts_;
      if constexpr (kFolds) {
        // Why a second condition, which never holds: without a branch at each slab, ptxas moves
        // code across the fence and then runs nvfp4's products one after the other (C7513).
        is_special = take_folded() || p_.steps < 0;
        scale_k_ += S::kK << p_.team_shift;
        fetch_scales();
      }
#pragma unroll
      for (int first = 0; first < S::kSlabs; first += kUnit) {
        auto& own = elements[first / kUnit % 2];
        // The branch is here and not around wgmma, which all warps of a warpgroup take together.
        if (is_special) {
#pragma unroll
          for (int i = 0; i < kUnit; ++i) {
            decode<true>(words_, first + i, own[i]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < kUnit; ++i) {
            const int slab = first + i;
            if (kHasZeros && (zero_ends_ & 1 << slab) != 0) {
              take_zeros();
              zero_k_ += to_next(slab);
              fetch_zeros();
            }
            decode<false>(words_, slab, own[i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
          const int slab = first + i;
          if (!kFolds && (ends_ & 1 << slab) != 0) {
            if (i > 0) {
              ptx::wgmma_commit();
            }
            ptx::wgmma_wait<0>();
            ptx::wgmma_pin(sums);
            add_scaled(scale_, sums, totals);
            accumulates = false;
            take_factors();
            scale_k_ += to_next(slab);
            fetch_scales();
          }
          if (i == 0 || !kFolds) {
            ptx::wgmma_pin(sums);
            ptx::wgmma_fence();
          }
          const uint32_t low =
              rows + static_cast<uint32_t>(slab / 2) * tile + static_cast<uint32_t>(slab % 2 * 4);
          ptx::Wgmma<kRows>::bf16(sums, own[i][0], ptx::wgmma_descriptor(low), accumulates);
          ptx::Wgmma<kRows>::bf16(sums, own[i][1], ptx::wgmma_descriptor(low + 2), true);
          accumulates = true;
        }
        ptx::wgmma_commit();
        if (first + kUnit == S::kSlabs) {
          held_ = empty_ + ring_.slot * uint32_t{sizeof(uint64_t)};
          ring_.advance(1, p_.num_stages);
          if (goes_on || step + 1 < p_.steps) {
            load_next();  // while products are under way
          }
        }
        ptx::wgmma_wait<1>();
        if (first == 0 && step > 0) {
          release();  // the products of the step before are complete
        }
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(sums);
    release();
    if constexpr (!kFolds) {
      add_scaled(scale_, sums, totals);
    }
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      result[j] = kFolds ? sums[j] : totals[j];
    }
  }

  // The functions that follow store.

  // Adds up the sums of the teams, in their order, in the first team.
  __device__ __forceinline__ void add_teams(Sums& sums) const {
    constexpr int kBarrier = 1;
    constexpr int kGroupThreads = kGroupWarps * kWarp;
    const int side_by_side = kGroups >> p_.team_shift;
    float* own = team_sums_ + threadIdx.x % kGroupThreads;
    const auto at = [&](int team, int j) -> float& {
      return own[(((team - 1) * side_by_side + beside_) * (kRows / 2) + j) * kGroupThreads];
    };
    ptx::barrier_sync<kWarps * kWarp>(kBarrier);  // those of the item before have been read
    if (team_ > 0) {
#pragma unroll
      for (int j = 0; j < kRows / 2; ++j) {
        at(team_, j) = sums[j];
      }
    }
    ptx::barrier_sync<kWarps * kWarp>(kBarrier);
    if (team_ == 0) {
#pragma unroll 1
      for (int team = 1; team < 1 << p_.team_shift; ++team) {
#pragma unroll
        for (int j = 0; j < kRows / 2; ++j) {
          sums[j] += at(team, j);
        }
      }
    }
  }

  __device__ __forceinline__ float column_factor(const Place& place, int n) const {
    float factor = 1.0f;
    if constexpr (kFolds) {
      factor = kColumnFactor;
      if constexpr (kIsPair) {
        factor *= global_factor(p_.w, place.group, n);
      }
    }
    return factor;
  }

  __device__ __forceinline__ float row_factor(const Place& place, int row) const {
    if (p_.a.scales == RowScales::kNone) {
      return 1.0f;
    }
    int64_t at = 0;
    if (p_.a.scales == RowScales::kPerRow) {
      const int64_t own = place.row + row;
      at = (p_.index != nullptr ? p_.index[own] : own) * p_.a.num_blocks;
    } else if (p_.a.scales == RowScales::kPerGroup) {
      at = place.group;
    }
    return p_.a.divides ? 1.0f / p_.a.scale[at] : p_.a.scale[at];
  }

  __device__ __forceinline__ void finish(const Place& place, Sums& sums) const {
    if (p_.team_shift > 0) {
      add_teams(sums);
      if (team_ > 0) {
        return;
      }
    }
    float factor[2];
    float bias[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = min(column_of(place, i), p_.n - 1);
      factor[i] = column_factor(place, n);
      bias[i] = p_.bias != nullptr ? p_.bias[int64_t{place.group} * p_.n + n] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      const int row = j / 4 * 8 + part_ * 2 + j % 2;
      const float by_row = row < place.rows ? row_factor(place, row) : 1.0f;
      sums[j] = sums[j] * factor[j / 2 % 2] * by_row + bias[j / 2 % 2];
    }
    if (p_.out_dtype == DType::kF32 || p_.n % 2 != 0) {
      store_elements(place, sums);
    } else if (p_.out_dtype == DType::kBF16) {
      store_pairs<BFloat16>(place, sums);
    } else {
      store_pairs<Float16>(place, sums);
    }
  }

  __device__ __forceinline__ void store_elements(const Place& place, const Sums& sums) const {
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      const int row = j / 4 * 8 + part_ * 2 + j % 2;
      const int n = column_of(place, j / 2 % 2);
      if (row < place.rows && n < p_.n) {
        const int64_t at = (place.row + row) * p_.n + n;
        if (p_.out_dtype == DType::kF32) {
          static_cast<float*>(p_.out)[at] = sums[j];
        } else if (p_.out_dtype == DType::kBF16) {
          store1(static_cast<BFloat16*>(p_.out) + at, sums[j]);
        } else {
          store1(static_cast<Float16*>(p_.out) + at, sums[j]);
        }
      }
    }
  }

  // Stores two neighbours at a time: of every 8 x 8, a lane has two rows of a column, and gets two
  // columns of a row.
  template <typename T>
  __device__ __forceinline__ void store_pairs(const Place& place, const Sums& sums) const {
    const int n = place.column + warp_column_ + part_ * 2;
    T* to = static_cast<T*>(p_.out) + (place.row + quad_) * p_.n + n;
#pragma unroll
    for (int first = 0; first < kRows; first += 8) {
      if (first < place.rows) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* own = sums + first / 2 + i * 2;
          const uint32_t pair = ptx::transpose_8x8(narrow_pair(T{}, own[0], own[1]));
          if (first + quad_ < place.rows && n + i * 8 < p_.n) {
            *reinterpret_cast<uint32_t*>(to + i * 8) = pair;
          }
        }
      }
      to += 8 * int64_t{p_.n};
    }
  }

  const Args& p_;
  Items<kRows> items_;
  // These shared addresses are kept, since the compiler would compute them again and again.
  uint32_t stages_;
  uint32_t full_;
  uint32_t empty_;
  float* team_sums_;

  int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  int warp_ = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  int group_ = warp_ / kGroupWarps;
  int quad_ = lane_ / 4;  // its columns are quad_ and quad_ + 8 of the warp's
  int part_ = lane_ % 4;  // which eight of every slab it has
  int team_;
  int beside_;  // the place of the warpgroup in its team
  int warp_column_;
  uint32_t codes_;  // those of the lane in the first stage

  Place place_;  // of the item that has been started
  Ring ring_;
  uint32_t held_ = 0;  // the barrier of the stage before
  Words words_;        // of the next step

  // The scales to come, as they lie in memory.
  int scale_k_;              // where they begin
  int zero_k_;               // where the zero points begin
  uint32_t first_scale_[2];  // of the item's columns
  uint32_t next_scale_[2][kFetches];
  uint32_t next_zero_[2];
  int has_zeros_ = ptx::opaque(p_.w.zero_point != nullptr);
  uint32_t ends_ = ptx::opaque(p_.ends);
  int subtracts_ = has_zeros_ != 0 || p_.w.default_zero_point != 0.0f;  // zero points
  uint32_t zero_ends_ = has_zeros_ != 0 ? ends_ : 0;
  // Those in use: factors of sums, and what decode_pairs() takes.
  float scale_[2];
  uint32_t by_[2][kFactors];
};

}  // namespace moebius::cuda::few_rows
