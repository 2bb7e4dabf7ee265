// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The consumers: the warpgroups that multiply what is in the stages of the grouped GEMM's kernel.
#pragma once

#include "core/cuda/wgmma.cuh"
#include "experts/cuda/gemm/sm90/activated.cuh"
#include "experts/cuda/gemm/sm90/bulk_store.cuh"
#include "experts/cuda/gemm/sm90/decoded_groups.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"
#include "experts/cuda/gemm/sm90/store.cuh"

namespace moebius::cuda::sm90 {

// A stage, and a box of half of a tile's columns, as descriptors count.
inline constexpr int kStageUnits = kStageBytes / ptx::kDescriptorUnit;
inline constexpr int kBoxUnits = kBoxBytesB / ptx::kDescriptorUnit;

// Adds to sums the products of 32 bytes of k of both operands, of bf16, f16 or int8.
template <typename Config, int kN>
__device__ __forceinline__ void multiply(typename Config::Sum (&sums)[kN / 2],
                                         uint32_t a,
                                         uint32_t b,
                                         bool accumulates) {
  if constexpr (Config::kIsInt8) {
    ptx::Wgmma<kN>::s8(sums, ptx::wgmma_descriptor(a), ptx::wgmma_descriptor(b), accumulates);
  } else if constexpr (Config::kIsF16) {
    ptx::Wgmma<kN>::f16(sums, ptx::wgmma_descriptor(a), ptx::wgmma_descriptor(b), accumulates);
  } else {
    ptx::Wgmma<kN>::bf16(sums, ptx::wgmma_descriptor(a), ptx::wgmma_descriptor(b), accumulates);
  }
}

// Calls multiply(stage, is_last) for every kAtOnce blocks of K; each call advances the ring past
// them.  Why it jumps into an unrolled loop: so `stage` is a constant in every call, and between
// two products a warp neither compares it nor computes more than the base of descriptors.
// REQUIRES: `blocks` and the ring's stage are multiples of kAtOnce.
template <int kAtOnce = 1, typename Config, typename Multiply>
__device__ __forceinline__ void for_each_block(const Ring<Config>& ring,
                                               int blocks,
                                               const Multiply& multiply) {
  static_assert(Config::kStages <= 4 && Config::kStages % kAtOnce == 0);
  const auto ends_with = [&](int stage) {
    if (stage >= Config::kStages || stage % kAtOnce != 0) {
      return false;
    }
    multiply(stage, blocks == kAtOnce);
    blocks -= kAtOnce;
    return blocks == 0;
  };
  switch (ring.stage) {
    while (true) {
      case 0:
        if (ends_with(0)) {
          return;
        }
        [[fallthrough]];
      case 1:
        if (ends_with(1)) {
          return;
        }
        [[fallthrough]];
      case 2:
        if (ends_with(2)) {
          return;
        }
        [[fallthrough]];
      default:
        if (ends_with(3)) {
          return;
        }
    }
  }
}

// Computes the sums of a large tile of bf16, f16 or int8: 64 rows per warpgroup, 256 columns.
template <typename Config>
__device__ __forceinline__ void multiply_large(Ring<Config>& ring,
                                               int blocks,
                                               const Place& at,
                                               typename Config::Sum (&sums)[kTileColumns / 2]) {
  const uint32_t rows = ptx::wgmma_descriptor_low(ring.a(0) + at.warpgroup * 64 * kBlockBytes);
  const uint32_t columns = ptx::wgmma_descriptor_low(ring.b(0));
  int before = -1;
  for_each_block(ring, blocks, [&](int stage, bool /*is_last*/) {
    ring.await_full(stage);
    ptx::wgmma_pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t from = stage * kStageUnits + 2 * step;
      multiply<Config, kTileColumns>(sums, rows + from, columns + from, before >= 0 || step != 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (before >= 0) {
      ring.release(before);
    }
    before = stage;
    ring.advance();
  });
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(sums);
  ring.release(before);
}

// Holds the scales that a thread needs of a stage of f8e4m3 by blocks.
template <typename Config>
struct Fp8Scales {
  float a[2];  // of its rows
  float b[2];  // of either half of the columns

  // Awaits the stage, also where there are no such scales.
  __device__ __forceinline__ Fp8Scales(const Ring<Config>& ring, const Place& at) {
    const int row = at.warpgroup * 64 + at.warp * 16 + at.quad;
    ring.await_full();
    if constexpr (Config::kHasBlockScales) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[i] = ring.a_scale(row + 8 * i);
        b[i] = ring.b_scale(i);
      }
    }
  }
};

// Computes the sums of a large tile of f8e4m3, 128 of K at a time: the tensor core keeps fewer bits
// than f32, so its sums are added up here, by blocks also scaled.  The two halves of the columns
// follow one another, for want of registers; meanwhile the other warpgroup has the tensor core.
// Why the next stage is looked at while the tensor core works: the work between two products takes
// longer than the other warpgroup's products, so that less of it should be left.
template <typename Config>
__device__ __forceinline__ void multiply_fp8(Ring<Config>& ring,
                                             int blocks,
                                             const Place& at,
                                             float (&sums)[kTileColumns / 2]) {
  static_assert(kScaleBlock == kBoxRowsB);
  const uint32_t rows = ptx::wgmma_descriptor_low(ring.a(0) + at.warpgroup * 64 * kBlockBytes);
  const uint32_t columns = ptx::wgmma_descriptor_low(ring.b(0));
#pragma unroll
  for (int i = 0; i < kTileColumns / 2; ++i) {
    sums[i] = 0.0f;
  }
  Fp8Scales<Config> next(ring, at);
  for_each_block(ring, blocks, [&](int stage, bool is_last) {
    const Fp8Scales<Config> own = next;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float products[kScaleBlock / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint32_t from = stage * kStageUnits + 2 * step;
        ptx::Wgmma<kScaleBlock>::e4m3(products, ptx::wgmma_descriptor(rows + from),
                                      ptx::wgmma_descriptor(columns + half * kBoxUnits + from),
                                      step != 0);
      }
      ptx::wgmma_commit();
      [[maybe_unused]] float scales[2];
      if constexpr (Config::kHasBlockScales) {
        scales[0] = own.a[0] * own.b[half];
        scales[1] = own.a[1] * own.b[half];
      }
      if (half == 1) {
        ring.advance();
        if (!is_last) {
          next = Fp8Scales<Config>(ring, at);
        }
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products);
      if (half == 1) {
        ring.release(stage);
      }
#pragma unroll
      for (int i = 0; i < kScaleBlock / 2; ++i) {
        float& sum = sums[half * kScaleBlock / 2 + i];
        if constexpr (Config::kHasBlockScales) {
          sum = __fmaf_rn(products[i], scales[i / 2 % 2], sum);
        } else {
          sum += products[i];
        }
      }
    }
  });
}

// Computes the sums of a small tile by swap-AB: D is [columns of out, rows of out], with 64 columns
// of either box per warpgroup.
template <typename Config, int kRows>
__device__ __forceinline__ void multiply_small(Ring<Config>& ring,
                                               int blocks,
                                               const Place& at,
                                               typename Config::Sum (&sums)[2][kRows / 2]) {
  constexpr int kSums = kRows / 2;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[0][i] = 0;
    sums[1][i] = 0;
  }
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    [[maybe_unused]] float a_scale[kRows / 4];  // of the rows that are this thread's columns of D
    [[maybe_unused]] float b_scale[2];
    if constexpr (Config::kHasBlockScales) {
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        a_scale[i] = ring.a_scale(8 * (i / 2) + 2 * at.lane + i % 2);
      }
      b_scale[0] = ring.b_scale(0);
      b_scale[1] = ring.b_scale(1);
    }
    const uint32_t rows = ptx::wgmma_descriptor_low(ring.a());
    const uint32_t weights = ring.b() + at.warpgroup * 64 * kBlockBytes;
    if constexpr (Config::kIsFp8) {
      float products[2][kSums];
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t columns = ptx::wgmma_descriptor_low(weights + half * kBoxBytesB);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::e4m3(products[half], ptx::wgmma_descriptor(columns + 2 * step),
                                  ptx::wgmma_descriptor(rows + 2 * step), step != 0);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products[0]);
      ptx::wgmma_pin(products[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          if constexpr (Config::kHasBlockScales) {
            sums[half][i] = __fmaf_rn(products[half][i], a_scale[i / 4 * 2 + i % 2] * b_scale[half],
                                      sums[half][i]);
          } else {
            sums[half][i] += products[half][i];
          }
        }
      }
    } else {
      ptx::wgmma_pin(sums[0]);
      ptx::wgmma_pin(sums[1]);
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t columns = ptx::wgmma_descriptor_low(weights + half * kBoxBytesB);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply<Config, kRows>(sums[half], columns + 2 * step, rows + 2 * step, true);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(sums[0]);
      ptx::wgmma_pin(sums[1]);
    }
    ring.release(ring.stage);
    ring.advance();
  }
}

// Computes the sums of bf16 or f16 with scales that change along K: products of kStepElements of K
// are scaled and added up here.  D is transposed for large tiles, too: a thread then has four
// columns, and as many scales, instead of 64.  For the rest see multiply_fp8.
template <typename Config, int kRows, int kStepElements>
__device__ __forceinline__ void multiply_scaled(Ring<Config>& ring,
                                                int blocks,
                                                const Place& at,
                                                float (&sums)[2][kRows / 2]) {
  constexpr int kElements = 16;  // elements of K that an instruction takes
  constexpr int kPerStage = Config::kBlockElements / kElements;
  constexpr int kPerStep = kStepElements / kElements;
  constexpr int kStagesAtOnce = kPerStep > kPerStage ? kPerStep / kPerStage : 1;
  constexpr int kParts = kStagesAtOnce * kPerStage / kPerStep;
  const int column = column_in_box(at) + column_in_four(at, 0);
  const uint32_t rows = ptx::wgmma_descriptor_low(ring.a(0));
  const uint32_t columns = ptx::wgmma_descriptor_low(ring.b(0) + at.warpgroup * 64 * kBlockBytes);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    sums[0][i] = 0.0f;
    sums[1][i] = 0.0f;
  }
  ring.await_full();
  for_each_block<kStagesAtOnce>(ring, blocks, [&](int first_stage, bool are_last) {
#pragma unroll
    for (int i = 1; i < kStagesAtOnce; ++i) {
      ring.await_full(first_stage + i);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const bool is_last = half == 1 && part == kParts - 1;
        float products[kRows / 2];
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kPerStep; ++i) {
          const int at_once = part * kPerStep + i;
          const uint32_t from =
              (first_stage + at_once / kPerStage) * kStageUnits + 2 * (at_once % kPerStage);
          multiply<Config, kRows>(products, columns + half * kBoxUnits + from, rows + from, i != 0);
          if (i % kPerStage == kPerStage - 1 || i == kPerStep - 1) {
            ptx::wgmma_commit();
          }
        }
        const float scales[2] = {ring.column_scale(part, half * kBoxRowsB + column),
                                 ring.column_scale(part, half * kBoxRowsB + column + 2)};
        if (is_last) {
          if constexpr (kStagesAtOnce > 1) {
            ptx::wgmma_wait<1>();
            ring.release(first_stage);
          }
#pragma unroll
          for (int i = 0; i < kStagesAtOnce; ++i) {
            ring.advance();
          }
          if (!are_last) {
            ring.await_full();
          }
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(products);
        if (is_last) {
          ring.release(first_stage + kStagesAtOnce - 1);
        }
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          sums[half][i] = __fmaf_rn(products[i], scales[i / 2 % 2], sums[half][i]);
        }
      }
    }
  });
}

// The warps of both consumer warpgroups.
template <typename Config>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Args& args, Shared<Config>& shared)
      : args_(args), shared_(shared), ring_(shared), blocks_(num_blocks<Config>(args)) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ring_.await_full();
      const Work& told = shared_.work[ring_.stage];
      const Work work{ptx::uniform(told.group),    ptx::uniform(told.row),
                      ptx::uniform(told.num_rows), ptx::uniform(told.column),
                      ptx::uniform(told.is_small), ptx::uniform(told.is_narrow)};
      if (work.num_rows == 0) {
        break;
      }
      if (work.is_small == 0) {
        if constexpr (Config::kIsInt8) {
          exact_tile(work);
        } else if constexpr (Config::kIsScaled) {
          small_tile<kTileRows>(work);
        } else {
          large_tile(work);
        }
      } else if (work.num_rows <= kBoxRowsA) {
        small_tile<kBoxRowsA>(work);
      } else {
        small_tile<kSmallRows>(work);
      }
      if constexpr (Config::kDecodes) {
        count_tile(args_, work.group);
      }
    }
    if constexpr (Config::kStoresInBulk) {
      await_bulk_stores();
    }
  }

 private:
  __device__ __forceinline__ void exact_tile(const Work& work) {
    int32_t sums[kTileColumns / 2];
    multiply_large(ring_, blocks_, at_, sums);
    visit_column_scales(
        [&](const auto* scales) { store_large(work, exact_sums(args_, scales, at_, work, sums)); });
  }

  __device__ __forceinline__ void large_tile(const Work& work) {
    float sums[kTileColumns / 2];
    if constexpr (Config::kHasBlockScales) {
      multiply_fp8(ring_, blocks_, at_, sums);
    } else if constexpr (Config::kIsFp8) {
      // They are requested before the products, since an index may have to be read first.
      const float scales[2] = {scale_of_row(args_, work, row_in_tile(at_, 0)),
                               scale_of_row(args_, work, row_in_tile(at_, 1))};
      multiply_fp8(ring_, blocks_, at_, sums);
      scale_rows(scales, sums);
    } else {
      multiply_large(ring_, blocks_, at_, sums);
      if (args_.a_scale != nullptr) {
        apply_rows(args_, at_, work, sums);
      }
    }
    visit_column_scales([&](const auto* scales) {
      apply_columns<Config>(args_, scales, args_.column_step, at_, work, sums, Multiply{});
    });
    if (args_.bias != nullptr) {
      apply_columns<Config>(args_, args_.bias, 1, at_, work, sums, Add{});
    }
    if constexpr (Config::kActivates) {
      store_activated<Config>(args_, at_, work, sums);
    } else {
      store_large(work, [&](int half, int block, int i) { return sum_of(sums, block, half, i); });
    }
  }

  // Stores a large tile; finished(half, block, i) is as in store_rows().
  template <typename Finished>
  __device__ __forceinline__ void store_large(const Work& work, const Finished& finished) {
    if constexpr (Config::kStoresInBulk) {
      // TMA leaves out columns that do not exist; exact sums would read their scales.
      const bool has_columns = !Config::kIsInt8 || work.column + kTileColumns <= args_.end_column;
      if (work.num_rows == kTileRows && has_columns) {
        return store_in_bulk(args_, shared_, at_, work, finished);
      }
    }
    store_rows<Config>(args_, at_, work, finished);
  }

  // Calls visit with the scales of columns in their type, where there are any.
  template <typename Visit>
  __device__ __forceinline__ void visit_column_scales(const Visit& visit) {
    if (args_.column_scale == nullptr) {
      return;
    }
    if constexpr (Config::kTakesNarrowScales) {
      if (args_.column_dtype == DType::kBF16) {
        return visit(static_cast<const BFloat16*>(args_.column_scale));
      }
      if (args_.column_dtype == DType::kF16) {
        return visit(static_cast<const Float16*>(args_.column_scale));
      }
    }
    visit(static_cast<const float*>(args_.column_scale));
  }

  // Computes a tile of kRows rows at most, with D transposed.
  template <int kRows>
  __device__ __forceinline__ void small_tile(const Work& work) {
    float sums[2][kRows / 2];
    if constexpr (Config::kIsInt8) {
      int32_t exact[2][kRows / 2];
      multiply_small<Config, kRows>(ring_, blocks_, at_, exact);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        sums[0][i] = static_cast<float>(exact[0][i]);
        sums[1][i] = static_cast<float>(exact[1][i]);
      }
    } else if constexpr (Config::kIsScaled) {
      constexpr int kStage = Config::kBlockElements;
      if (args_.scale_block % (2 * kStage) == 0 && args_.k % (2 * kStage) == 0) {
        multiply_scaled<Config, kRows, 2 * kStage>(ring_, blocks_, at_, sums);
      } else if (scale_parts<Config>(args_) == 1) {
        multiply_scaled<Config, kRows, kStage>(ring_, blocks_, at_, sums);
      } else {
        multiply_scaled<Config, kRows, kScaleStep>(ring_, blocks_, at_, sums);
      }
    } else {
      multiply_small<Config, kRows>(ring_, blocks_, at_, sums);
    }
    if (!Config::kHasBlockScales && args_.a_scale != nullptr) {
      apply_small_rows<kRows>(args_, at_, work, sums);
    }
    visit_column_scales([&](const auto* scales) {
      apply_small_columns<Config, kRows>(args_, scales, args_.column_step, at_, work, sums,
                                         Multiply{});
    });
    if (args_.bias != nullptr) {
      apply_small_columns<Config, kRows>(args_, args_.bias, 1, at_, work, sums, Add{});
    }
    if constexpr (Config::kActivates) {
      if (has_columns<Config>(args_, at_, work, 0)) {
        store_small_activated<Config, kRows>(args_, at_, work, sums, shared_.row_max[turn_]);
        turn_ ^= 1;
      }
    } else {
      store_small<Config, kRows>(args_, at_, work, sums);
    }
  }

  const Args& args_;
  Shared<Config>& shared_;
  Ring<Config> ring_;
  Place at_;
  int blocks_;
  int turn_ = 0;
};

}  // namespace moebius::cuda::sm90
