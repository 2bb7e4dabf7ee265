// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warps that bring into the stages of the grouped GEMM's kernel what no bulk copy brings:
// scales of f8e4m3, and rows of a that are named one by one.  Why the thread that loads boxes does
// not bring them: one after the other they take longer than the tensor core does.  Why they are not
// boxes of one row each: TMA takes some 50 cycles for any box.
#pragma once

#include "core/cuda/mma.cuh"
#include "experts/cuda/gemm/sm90/plan.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

// Copies the scales that one of kWarps warps brings, where stages have any: those of every
// kWarps-th box, beginning with the box of the warp's index.
template <typename Config, int kWarps>
class ScaleCopies {
 public:
  __device__ __forceinline__ ScaleCopies(const Args&, Shared<Config>&, int /*index*/) {}
  __device__ __forceinline__ void begin(const PlanOf<Config>&) {}
  __device__ __forceinline__ void copy(int /*stage*/, int /*block*/) {}
};

// For f8e4m3 by blocks: the scales of the rows of a tile, and of its two times 128 columns.
template <typename Config, int kWarps>
requires Config::kHasBlockScales class ScaleCopies<Config, kWarps> {
 public:
  __device__ __forceinline__ ScaleCopies(const Args& args, Shared<Config>& shared, int index)
      : args_(args), shared_(shared), index_(index) {}

  __device__ __forceinline__ void begin(const PlanOf<Config>& plan) {
    const int blocks = num_blocks<Config>(args_);
    boxes_ = plan.boxes;
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int row = plan.work.row + box(i) * kBoxRowsA + lane_;
      of_rows_[i] = args_.a_scale + int64_t{row_of_a(args_, min(row, args_.num_rows - 1))} * blocks;
    }
    const int64_t last = (args_.n + kScaleBlock - 1) / kScaleBlock - 1;
    const int64_t column_block =
        min(int64_t{box_column<Config>(args_, plan.work, lane_ % 2) / kScaleBlock}, last);
    of_columns_ = args_.b_scale + (plan.work.group * (last + 1) + column_block) * blocks;
  }

  __device__ __forceinline__ void copy(int stage, int block) {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      if (box(i) < boxes_) {
        ptx::copy_async_4(&shared_.a_scale[stage][box(i) * kBoxRowsA + lane_], of_rows_[i] + block);
      }
    }
    if (index_ == 0 && lane_ < 2) {
      ptx::copy_async_4(&shared_.b_scale[stage][lane_], of_columns_ + block);
    }
  }

 private:
  static_assert(kBoxRowsA == kWarp);
  static constexpr int kBoxes = kTileRows / kBoxRowsA / kWarps;

  __device__ __forceinline__ int box(int i) const {
    return i * kWarps + index_;
  }

  const Args& args_;
  Shared<Config>& shared_;
  int index_;
  int lane_ = static_cast<int>(ptx::lane());
  int boxes_ = 0;
  const float* of_rows_[kBoxes];
  const float* of_columns_ = nullptr;
};

// For scaled bf16 and f16: the scales of a tile's columns, for one or both parts of a stage.
template <typename Config, int kWarps>
requires Config::kIsScaled class ScaleCopies<Config, kWarps> {
 public:
  __device__ __forceinline__ ScaleCopies(const Args& args, Shared<Config>& shared, int index)
      : args_(args), shared_(shared), index_(index) {}

  __device__ __forceinline__ void begin(const PlanOf<Config>& plan) {
    const int64_t groups = (args_.k + args_.scale_block - 1) / args_.scale_block;
    work_ = plan.work;
    from_ = args_.b_scale + work_.group * groups * args_.n + column_;
    left_ = args_.scale_block;
  }

  __device__ __forceinline__ void copy(int stage, int /*block*/) {
    const int parts = scale_parts<Config>(args_);
    for (int part = 0; part < parts; ++part) {
      for (int box = index_; box < 2; box += kWarps) {
        ptx::copy_async_16(&shared_.column_scale[stage][part][box * kBoxRowsB + column_],
                           from_ + box_column<Config>(args_, work_, box),
                           work_.column + box * kBoxRowsB + column_ < args_.end_column);
      }
      left_ -= Config::kBlockElements / parts;
      if (left_ == 0) {
        left_ = args_.scale_block;
        from_ += args_.n;
      }
    }
  }

 private:
  static constexpr int kVector = 4;
  static_assert(offsetof(Shared<Config>, column_scale) % 16 == 0, "copied 16 bytes at a time");
  static_assert(kBoxRowsB == kWarp * kVector);

  const Args& args_;
  Shared<Config>& shared_;
  int index_;
  int column_ = static_cast<int>(ptx::lane()) * kVector;  // of a box
  Work work_ = {};
  const float* from_ = nullptr;
  int left_ = 0;  // how much of K has these scales
};

// Copies likewise a warp's rows of a, swizzled as boxes are.  Eight lanes copy the 128 bytes of a
// row, so that an instruction copies four rows.
template <typename Config, int kWarps>
class RowCopies {
 public:
  __device__ __forceinline__ RowCopies(const Args& args, int index)
      : args_(args), index_(index), row_bytes_(args.k * (kBlockBytes / Config::kBlockElements)) {
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const int row = i * kRows + own_row_;
      places_[i] = row * kBlockBytes + (vector_ ^ row) * kVectorBytes;
    }
  }

  __device__ __forceinline__ void begin(const PlanOf<Config>& plan) {
    boxes_ = plan.boxes;
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const int row = min(first_row(i, j) + own_row_, plan.work.num_rows - 1);
        from_[i][j] = static_cast<uint32_t>(args_.a_rows[plan.work.row + row]) * row_bytes_ +
                      vector_ * kVectorBytes;
      }
    }
  }

  __device__ __forceinline__ void copy(const Ring<Config>& ring, int block) {
    const auto* values = static_cast<const uint8_t*>(args_.a_values) + block * kBlockBytes;
    const bool exists = block * kBlockBytes + vector_ * kVectorBytes < row_bytes_;
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      if (i * kWarps + index_ < boxes_) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          ptx::copy_async_16_ahead(
              ring.a() + (first_row(i, j) - first_row(i, j) % kSwizzleRows) * kBlockBytes +
                  places_[j % kPlaces],
              values + from_[i][j], exists);
        }
      }
    }
  }

 private:
  static constexpr int kVectorBytes = 16;
  static constexpr int kVectors = kBlockBytes / kVectorBytes;  // of a row
  static constexpr int kRows = kWarp / kVectors;               // at once
  static constexpr int kSwizzleRows = 8;
  static constexpr int kPlaces = kSwizzleRows / kRows;
  static constexpr int kBoxes = kTileRows / kBoxRowsA / kWarps;
  static constexpr int kSteps = kBoxRowsA / kRows;

  __device__ __forceinline__ int first_row(int i, int j) const {
    return (i * kWarps + index_) * kBoxRowsA + j * kRows;
  }

  const Args& args_;
  int index_;
  uint32_t row_bytes_;
  int own_row_ = static_cast<int>(ptx::lane()) / kVectors;
  uint32_t vector_ = ptx::lane() % kVectors;
  int boxes_ = 0;
  uint32_t places_[kPlaces];  // in kSwizzleRows rows
  // Bytes from the begin of a.  Why 32 bits: with 64 there would be too few registers.
  uint32_t from_[kBoxes][kSteps];
};

// Fills stages, as the only warp of each CTA that copies scales, or as one of kRowWarps, which also
// copy rows.  Why a stage with rows counts as full one stage later: the tensor core sees the rows
// only after a fence by the threads that copied them, once they have arrived.  Consumers that await
// a stage have released all but the two before it, or with three stages all but the one, so the
// place of the next stage is or becomes empty.
template <typename Config, int kWarps>
__device__ __forceinline__ void fill_copies(const Args& args,
                                            Shared<Config>& shared,
                                            Ring<Config> ring,
                                            int index) {
  constexpr bool kHasRows = kWarps == kRowWarps;
  static_assert(kRowWarps > 1 && kTileRows / kBoxRowsA % kWarps == 0);
  const int blocks = num_blocks<Config>(args);
  ptx::await_kernel_before();
  ScaleCopies<Config, kWarps> scales(args, shared, index);
  [[maybe_unused]] RowCopies<Config, kWarps> rows(args, index);
  [[maybe_unused]] int under_way = -1;  // the stage whose rows are under way; -1: none
  [[maybe_unused]] const auto arrive = [&] {
    ptx::fence_proxy_async_shared();
    ptx::mbarrier_arrive(ring.full(under_way));
  };
  Plans<Config> plans(shared);
  while (true) {
    const PlanOf<Config> plan = plans.next();
    if (plan.work.num_rows == 0) {
      break;
    }
    scales.begin(plan);
    if constexpr (kHasRows) {
      rows.begin(plan);
    }
    for (int block = 0; block < blocks; ++block) {
      ring.await_empty();
      scales.copy(ring.stage, block);
      if constexpr (kHasRows) {
        rows.copy(ring, block);
        ptx::copy_async_commit();
        if (under_way >= 0) {
          ptx::copy_async_wait<1>();
          arrive();
        }
        under_way = ring.stage;
      } else {
        ptx::mbarrier_arrive_after_copies(&shared.full[ring.stage]);
      }
      ring.advance();
    }
  }
  if (kHasRows && under_way >= 0) {
    ptx::copy_async_wait<0>();
    arrive();
  }
  ring.await_empty();
  ptx::mbarrier_arrive(ring.full());
}

}  // namespace moebius::cuda::sm90
