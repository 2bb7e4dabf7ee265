// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How the warps of few_rows_worker.cuh store the sums of an item: those of teams are added up, and
// all are multiplied by what their elements and rows lack.
#pragma once

#include "experts/cuda/gemm/dequant/few_rows_worker.cuh"
#include "experts/cuda/gemm/dequant/norms.cuh"

namespace moebius::cuda::few_rows {

// Adds up the sums of the teams, in their order, in the first team.
template <typename D, int kRows>
__device__ __forceinline__ void Worker<D, kRows>::add_teams(Sums& sums) const {
  constexpr int kBarrier = 1;
  constexpr int kGroupThreads = kGroupWarps * kWarp;
  float* own = team_sums_ + threadIdx.x % kGroupThreads;
  const auto at = [&](int team, int j) -> float& {
    return own[(((team - 1) * side_by_side_ + beside_) * (kRows / 2) + j) * kGroupThreads];
  };
  ptx::barrier_sync<kBlock.warps() * kWarp>(kBarrier);  // those of the item before have been read
  if (team_ > 0) {
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      at(team_, j) = sums[j];
    }
  }
  ptx::barrier_sync<kBlock.warps() * kWarp>(kBarrier);
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

template <typename D, int kRows>
__device__ __forceinline__ float Worker<D, kRows>::column_factor(const Place& place, int n) const {
  float factor = D::kColumnFactor;
  if constexpr (D::kIsPair) {
    factor *= global_factor(p_.w, place.group, n);
  } else if constexpr (D::kIsFoldedInt4) {
    factor = reciprocal_of_norm(p_.scale_norms[int64_t{place.group} * p_.n + n]);
  }
  return factor;
}

template <typename D, int kRows>
__device__ __forceinline__ float Worker<D, kRows>::row_factor(const Place& place, int row) const {
  int64_t at = 0;
  if (p_.a.scales == RowScales::kPerRow) {
    const int64_t own = place.row + row;
    at = (p_.index != nullptr ? p_.index[own] : own) * p_.a.num_blocks;
  } else if (p_.a.scales == RowScales::kPerGroup) {
    at = place.group;
  }
  return p_.a.divides ? 1.0f / p_.a.scale[at] : p_.a.scale[at];
}

template <typename D, int kRows>
__device__ __forceinline__ const float* Worker<D, kRows>::unit(const Place& place, int i) const {
  return p_.row_units + place.row + min(i * kWarp + lane_, place.rows - 1);
}
template <typename D, int kRows>
__device__ __forceinline__ void Worker<D, kRows>::fetch_units(const Place& place) const {
#pragma unroll
  for (int i = 0; i < kUnitsOfLane; ++i) {
    ptx::prefetch_to_l1(unit(place, i));
  }
}
template <typename D, int kRows>
__device__ __forceinline__ void Worker<D, kRows>::multiply_by_units(const Place& place,
                                                                    uint32_t first,
                                                                    Sums& sums) const {
  float own[kIsLarge ? kUnitsOfLane : 1];
  if constexpr (kIsLarge) {
#pragma unroll
    for (int i = 0; i < kUnitsOfLane; ++i) {
      own[i] = *unit(place, i);
    }
  }
#pragma unroll
  for (int j = 0; j < kRows / 2; j += j % 4 == 0 ? 1 : 3) {
    float factor = 0.0f;
    if constexpr (kIsLarge) {
      const int row = j / 4 * 8;
      factor = __shfl_sync(kAll, own[row / kWarp], row % kWarp + part_ * 2 + j % 2);
    } else {
      factor = __uint_as_float(
          ptx::ld_shared_word(first + static_cast<uint32_t>(row_of(j)) * uint32_t{sizeof(float)}));
    }
    sums[j] *= factor;
    sums[j + 2] *= factor;
  }
}

template <typename D, int kRows>
__device__ __forceinline__ void Worker<D, kRows>::finish(const Place& place,
                                                         uint32_t units,
                                                         Sums& sums) const {
  if (p_.team_shift > 0) {
    add_teams(sums);
    if (team_ > 0) {
      return;
    }
  }
  const int columns[2] = {min(column_of(place, 0), p_.n - 1), min(column_of(place, 1), p_.n - 1)};
  const float factor[2] = {column_factor(place, columns[0]), column_factor(place, columns[1])};
#pragma unroll
  for (int j = 0; j < kRows / 2; ++j) {
    sums[j] *= factor[j / 2 % 2];
  }
  if (kHasUnits && p_.row_units != nullptr) {
    multiply_by_units(place, units, sums);
  }
  if (p_.a.scales != RowScales::kNone) {
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      const int row = row_of(j);
      if (row < place.rows) {
        sums[j] *= row_factor(place, row);
      }
    }
  }
  if (p_.bias != nullptr) {
    const float* own = p_.bias + int64_t{place.group} * p_.n;
    const float bias[2] = {own[columns[0]], own[columns[1]]};
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      sums[j] += bias[j / 2 % 2];
    }
  }
  if (p_.out_dtype == DType::kF32 || p_.n % 2 != 0) {
    store_elements(place, sums);
  } else if (p_.out_dtype == DType::kBF16) {
    store_pairs<BFloat16>(place, sums);
  } else {
    store_pairs<Float16>(place, sums);
  }
}

template <typename D, int kRows>
__device__ __forceinline__ void Worker<D, kRows>::store_elements(const Place& place,
                                                                 const Sums& sums) const {
#pragma unroll
  for (int j = 0; j < kRows / 2; ++j) {
    const int row = row_of(j);
    const int n = column_of(place, j / 2 % 2);
    if (row < place.rows && n < p_.n) {
      const int64_t at = int64_t{place.row + row} * p_.n + n;
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
template <typename D, int kRows>
template <typename Out>
__device__ __forceinline__ void Worker<D, kRows>::store_pairs(const Place& place,
                                                              const Sums& sums) const {
  const int n = place.column + warp_column_ + part_ * 2;
  Out* to = static_cast<Out*>(p_.out) + int64_t{place.row + quad_} * p_.n + n;
#pragma unroll
  for (int first = 0; first < kRows; first += 8) {
    if (first < place.rows) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* own = sums + first / 2 + i * 2;
        const uint32_t pair = ptx::transpose_8x8(narrow_pair(Out{}, own[0], own[1]));
        if (first + quad_ < place.rows && n + i * 8 < p_.n) {
          *reinterpret_cast<uint32_t*>(to + i * 8) = pair;
        }
      }
    }
    to += 8 * int64_t{p_.n};
  }
}

}  // namespace moebius::cuda::few_rows
