// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warps that keep the stages of the grouped GEMM's kernel filled: a thread of one with boxes,
// all of a second one with scales, where stages have any.  Why two: one after the other they take
// longer than the tensor core does.
#pragma once

#include "core/cuda/mma.cuh"
#include "experts/cuda/sm90_plan.cuh"
#include "experts/cuda/sm90_shared.cuh"

namespace moebius::cuda::sm90 {

// One of a tile's boxes of kBoxRowsB columns, in the order of sm90_launch.h; past the last column
// there are zeros.
template <typename Config>
struct BoxOfB {
  int at[5];

  __device__ __forceinline__ BoxOfB(const Args& args, const Work& work, int box, int k)
      : at{k, 0, 0, 0,
           work.column + box * kBoxRowsB < args.end_column
               ? (work.group * args.n + box_column<Config>(args, work.column, box)) /
                     kColumnsInOrder
               : kNowhere} {}

 private:
  static constexpr int kNowhere = 1 << 30;
};

// The boxes of one block of K.
template <typename Config>
__device__ __forceinline__ void load_stage(
    const Args& args, const Ring<Config>& ring, const Plan& plan, int rank, int k) {
  constexpr uint16_t kBoth = (1 << kClusterSize) - 1;
  const Work& work = plan.work;
  const auto box_of_b = [&](int box) { return BoxOfB<Config>(args, work, box, k); };
  if (plan.shares_b) {
    if (plan.boxes == kTileRows / kBoxRowsA) {
      ptx::tensor_load(ring.a(), &args.a_tiles, k, work.row, ring.full());
    } else {
      for (int box = 0; box < plan.boxes; ++box) {
        ptx::tensor_load(ring.a() + box * kBoxBytesA, &args.a, k, work.row + box * kBoxRowsA,
                         ring.full());
      }
    }
    ptx::tensor_load_multicast(ring.b() + rank * kBoxBytesB, &args.b, box_of_b(rank).at,
                               ring.full(), kBoth);
  } else {
    for (int box = rank; box < plan.boxes; box += kClusterSize) {
      ptx::tensor_load_multicast(ring.a() + box * kBoxBytesA, &args.a, k,
                                 work.row + box * kBoxRowsA, ring.full(), kBoth);
    }
    ptx::tensor_load(ring.b(), &args.b, box_of_b(0).at, ring.full());
    ptx::tensor_load(ring.b() + kBoxBytesB, &args.b, box_of_b(1).at, ring.full());
  }
}

// One thread of each CTA: loads boxes, and says what they are for.
template <typename Config>
__device__ __forceinline__ void fill_boxes(const Args& args,
                                           Shared<Config>& shared,
                                           Ring<Config> ring) {
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int blocks = num_blocks<Config>(args);
  Plans<Config> plans(shared);
  while (true) {
    const Plan plan = plans.next();
    if (plan.work.num_rows == 0) {
      break;
    }
    for (int block = 0; block < blocks; ++block) {
      ring.await_empty();
      if (block == 0) {
        shared.work[ring.stage] = plan.work;
      }
      ptx::mbarrier_arrive_expect_tx(&shared.full[ring.stage],
                                     static_cast<uint32_t>(plan.boxes * kBoxBytesA + kBytesB));
      load_stage(args, ring, plan, rank, block * Config::kBlockElements);
      ring.advance();
    }
  }
  ring.await_empty();
  shared.work[ring.stage].num_rows = 0;
  ptx::mbarrier_arrive(&shared.full[ring.stage]);
}

// One warp of each CTA: scales of the rows of a tile, and of its two times 128 columns.
template <typename Config>
__device__ __forceinline__ void fill_scales(const Args& args,
                                            Shared<Config>& shared,
                                            Ring<Config> ring) {
  static_assert(kBoxRowsA == kWarp);
  constexpr int kBoxes = kTileRows / kBoxRowsA;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int blocks = num_blocks<Config>(args);
  const int64_t last_column_block = (args.n + kScaleBlock - 1) / kScaleBlock - 1;
  Plans<Config> plans(shared);
  while (true) {
    const auto [work, shares_b, boxes] = plans.next();
    if (work.num_rows == 0) {
      break;
    }
    const float* of_rows[kBoxes];
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const int64_t row = min(work.row + box * kBoxRowsA + lane, args.num_rows - 1);
      of_rows[box] = args.a_scale + row * blocks;
    }
    const int64_t column_block = min(
        int64_t{box_column<Config>(args, work.column, lane % 2) / kScaleBlock}, last_column_block);
    const float* of_columns =
        args.b_scale + (work.group * (last_column_block + 1) + column_block) * blocks;
    for (int block = 0; block < blocks; ++block) {
      ring.await_empty();
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        if (box < boxes) {
          ptx::copy_async_4(&shared.a_scale[ring.stage][box * kBoxRowsA + lane],
                            of_rows[box] + block);
        }
      }
      if (lane < 2) {
        ptx::copy_async_4(&shared.b_scale[ring.stage][lane], of_columns + block);
      }
      ptx::mbarrier_arrive_after_copies(&shared.full[ring.stage]);
      ring.advance();
    }
  }
  ring.await_empty();
  ptx::mbarrier_arrive(&shared.full[ring.stage]);
}

// The same for scaled bf16: those of a tile's columns, of one or both parts of a stage.
template <typename Config>
__device__ __forceinline__ void fill_column_scales(const Args& args,
                                                   Shared<Config>& shared,
                                                   Ring<Config> ring) {
  static_assert(offsetof(Shared<Config>, column_scale) % 16 == 0, "copied 16 bytes at a time");
  constexpr int kVector = 4;
  static_assert(kBoxRowsB == kWarp * kVector);
  const int column = static_cast<int>(threadIdx.x) % kWarp * kVector;  // of a box
  const int parts = scale_parts<Config>(args);
  const int num_steps = num_blocks<Config>(args) * parts;
  const int step_elements = Config::kBlockElements / parts;
  const int64_t groups = (args.k + args.scale_block - 1) / args.scale_block;
  Plans<Config> plans(shared);
  while (true) {
    const Work work = plans.next().work;
    if (work.num_rows == 0) {
      break;
    }
    const float* from = args.b_scale + work.group * groups * args.n + column;
    int left = args.scale_block;  // of K, with these scales
    for (int step = 0; step < num_steps; ++step) {
      const int part = parts == 1 ? 0 : step % 2;
      if (part == 0) {
        ring.await_empty();
      }
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        ptx::copy_async_16(&shared.column_scale[ring.stage][part][box * kBoxRowsB + column],
                           from + box_column<Config>(args, work.column, box),
                           work.column + box * kBoxRowsB + column < args.end_column);
      }
      left -= step_elements;
      if (left == 0) {
        left = args.scale_block;
        from += args.n;
      }
      if (part == parts - 1) {
        ptx::mbarrier_arrive_after_copies(&shared.full[ring.stage]);
        ring.advance();
      }
    }
  }
  ring.await_empty();
  ptx::mbarrier_arrive(&shared.full[ring.stage]);
}

}  // namespace moebius::cuda::sm90
