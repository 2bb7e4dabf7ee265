// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How whole tiles of 16-bit results are stored: a warp writes its rows to shared memory, from where
// TMA stores them while the next tile is multiplied.  Why not from registers: to store 64 KiB so
// takes an SM some 2600 cycles, and what the next tile requests waits behind them for longer.  TMA
// takes 1400.
#pragma once

#include "experts/cuda/gemm/sm90/store.cuh"

namespace moebius::cuda::sm90 {

// Waits until this warp's stores have read shared memory.
__device__ __forceinline__ void await_bulk_stores() {
  if (ptx::elect_one()) {
    ptx::bulk_wait_read<0>();
  }
  __syncwarp();
}

// Stores a warp's rows of a whole tile; finished(half, block, i) is as in store_rows().  In shared
// memory a row's 32 columns follow those of the row before, so that eight lanes, which write 16
// bytes each, use all banks.
template <typename Config, typename Finished>
__device__ __forceinline__ void store_in_bulk(const Args& args,
                                              Shared<Config>& shared,
                                              const Place& at,
                                              const Work& work,
                                              const Finished& finished) {
  static_assert(kStoreRows * kConsumerWarps == kTileRows);
  constexpr int kRowBytes = 2 * kColumnsInOrder;
  const int warp = at.consumer_warp();
  const uint32_t results = ptx::shared_address(shared.results[warp]);
  const uint32_t own = results + at.quad * kRowBytes + 16 * at.lane;
  await_bulk_stores();  // of the tile before
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto pair = [&](int i) {
        return narrow_pair(typename Config::Out{}, finished(half, block, i),
                           finished(half, block, i + 1));
      };
      const uint32_t eight[4] = {pair(0), pair(2), pair(4), pair(6)};
      ptx::st_shared(own + (block * kStoreRows + 8 * half) * kRowBytes, eight);
    }
  }
  ptx::fence_proxy_async_shared();
  __syncwarp();
  if (ptx::elect_one()) {
    const int from[3] = {0, work.row + warp * kStoreRows, work.column / kColumnsInOrder};
    ptx::tensor_store(&args.out_boxes, from, results);
    ptx::bulk_commit();
  }
}

}  // namespace moebius::cuda::sm90
