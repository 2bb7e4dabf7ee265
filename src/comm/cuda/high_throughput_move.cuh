// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The step of a high-throughput dispatch that moves rows.
#pragma once

#include "comm/cuda/high_throughput_block.cuh"

namespace moebius::comm::high_throughput_dispatch {

// Where a warp is among the pieces of its tokens.
struct Cursor {
  int64_t token;
  int item = 0;
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(const DispatchArgs& args) {
    if (++stage == args.shared.stages) {
      stage = 0;
      parity ^= 1;
    }
    if (++item == args.num_items) {
      item = 0;
      token += args.shared.warps;
    }
  }
};

// By the first lane: the piece of the token at `at` into its stage.
__device__ inline void load_piece(const Block& block, const Cursor& at) {
  const DispatchArgs& args = block.args;
  const StageItem item = args.items[at.item];
  if (item.bytes == 0) {
    return;
  }
  uint64_t* barrier = block.barrier(at.stage);
  ptx::mbarrier_arrive_expect_tx(barrier, item.bytes);
  for (int i = item.first; i < item.first + item.count; ++i) {
    const Segment segment = args.segments[i];
    ptx::bulk_load(
        block.stage(at.stage) + segment.stage_offset,
        args.source[segment.field] + at.token * args.field_bytes[segment.field] + segment.offset,
        segment.bytes, barrier);
  }
}

// Fills the stages of this warp, before anything is known of where the rows go.
__device__ inline Cursor start_loads(const Block& block) {
  const DispatchArgs& args = block.args;
  Cursor at{block.begin + block.warp()};
  if (block.lane() == 0) {
    for (int i = 0; i < args.shared.stages; ++i) {
      ptx::mbarrier_init(block.barrier(i), 1);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async_shared();
  }
  __syncwarp();
  for (int i = 0; i < args.shared.stages && at.token < block.end; ++i) {
    if (block.lane() == 0) {
      load_piece(block, at);
    }
    at.advance(args);
  }
  return at;
}

// A block may not end while its loads are under way.
__device__ inline void await_loads(const Block& block) {
  Cursor at{block.begin + block.warp()};
  for (int i = 0; i < block.args.shared.stages && at.token < block.end; ++i) {
    if (block.args.items[at.item].bytes > 0) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
    }
    at.advance(block.args);
  }
}

// What does not go in bulk of a copy of the token: to row `row` of rank `d`.
__device__ inline void store_rest(const Block& block,
                                  int64_t token,
                                  int d,
                                  int64_t row,
                                  int32_t id,
                                  float weight,
                                  int id_rank,
                                  int id_local) {
  const DispatchArgs& args = block.args;
  const int lane = block.lane();
  const auto place = [&](int field) {
    return reinterpret_cast<std::byte*>(block.field_base(field)[d]) + row * args.field_bytes[field];
  };
  for (int f = 0; f < args.num_payloads; ++f) {
    if ((args.in_bulk >> f & 1) == 0) {
      copy_plain(place(f), args.source[f] + token * args.field_bytes[f], args.field_bytes[f], lane);
    }
  }
  if (block.is_cached()) {
    return;
  }
  const bool is_here = id >= 0 && id_rank == d;
  if (lane < args.topk) {
    reinterpret_cast<int32_t*>(place(args.num_payloads))[lane] = is_here ? id_local : -1;
    if (args.weights != nullptr) {
      reinterpret_cast<float*>(place(args.num_payloads + 1))[lane] = is_here ? weight : 0.0f;
    }
  }
  if (lane == 0) {
    *reinterpret_cast<int32_t*>(place(args.num_payloads + 2)) = static_cast<int32_t>(token);
  }
}

// The stores of this warp's tokens.  `next` is the first piece that has not been asked for.
__device__ inline void move_rows(const Block& block, Cursor next) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int lane = block.lane();
  bool is_first = true;
  for (Cursor at{block.begin + block.warp()}; at.token < block.end; at.advance(args)) {
    int destination[kLanesOfRanks];
    int64_t row[kLanesOfRanks];
    int32_t* index = args.index + at.token * num_ranks;
#pragma unroll
    for (int i = 0; i < kLanesOfRanks; ++i) {
      const int turn = i * kWarp + lane;
      destination[i] =
          static_cast<int>((turn + block.rank() + at.token) % static_cast<uint32_t>(num_ranks));
      row[i] = turn < num_ranks ? index[destination[i]] : -1;
      if (row[i] >= 0 && at.item == 0 && !block.is_cached()) {
        row[i] += block.row_base()[destination[i]];
        index[destination[i]] = static_cast<int32_t>(row[i]);  // the next piece finds it, too
      }
    }
    int32_t id = -1;
    float weight = 0.0f;
    if (at.item == 0 && lane < args.topk) {
      id = __ldg(args.ids + at.token * args.topk + lane);
      weight = args.weights != nullptr ? __ldg(args.weights + at.token * args.topk + lane) : 0.0f;
    }
    const int id_rank = id >= 0 ? __ldg(args.rank_of + id) : -1;
    const int id_local = id >= 0 ? __ldg(args.local_of + id) : -1;

    const StageItem item = args.items[at.item];
    if (item.bytes > 0) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
    }
#pragma unroll
    for (int i = 0; i < kLanesOfRanks; ++i) {
      if (row[i] >= 0) {
        for (int s = item.first; s < item.first + item.count; ++s) {
          const Segment segment = args.segments[s];
          std::byte* to =
              reinterpret_cast<std::byte*>(block.field_base(segment.field)[destination[i]]);
          ptx::bulk_store(to + row[i] * args.field_bytes[segment.field] + segment.offset,
                          block.stage(at.stage) + segment.stage_offset, segment.bytes);
        }
      }
    }
    ptx::bulk_commit();
    if (at.item == 0) {
#pragma unroll
      for (int i = 0; i < kLanesOfRanks; ++i) {
        for (uint32_t lanes = __ballot_sync(~0u, row[i] >= 0); lanes != 0; lanes &= lanes - 1) {
          const int from = __ffs(static_cast<int>(lanes)) - 1;
          store_rest(block, at.token, __shfl_sync(~0u, destination[i], from),
                     __shfl_sync(~0u, row[i], from), id, weight, id_rank, id_local);
        }
      }
    }
    // The stage before this one is free once its stores have read it.
    ptx::bulk_wait_read<1>();
    __syncwarp();
    if (!is_first && next.token < block.end) {
      if (lane == 0) {
        load_piece(block, next);
      }
      next.advance(args);
    }
    is_first = false;
  }
  ptx::bulk_wait<0>();  // not _read: whoever is told of them must find them
}

}  // namespace moebius::comm::high_throughput_dispatch
