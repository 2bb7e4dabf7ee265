// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The step of a high-throughput dispatch that moves rows, one token after the other.
#pragma once

#include "comm/high_throughput/cuda/block.cuh"

namespace moebius::comm::high_throughput_dispatch {

// The tokens of a warp.
class WarpTokens {
 public:
  __device__ explicit WarpTokens(const Block& block)
      : token_(block.begin + block.warp()), end_(block.end), step_(block.args.shared.warps) {}

  __device__ bool exists() const { return token_ < end_; }
  __device__ int64_t token() const { return token_; }
  __device__ void advance() { token_ += step_; }

 private:
  int64_t token_;
  int64_t end_;
  int step_;
};

// Where a warp is among the pieces of its tokens.  Pieces take its stages in turn.
template <typename Tokens>
struct Cursor {
  Tokens tokens;
  int item = 0;
  int stage = 0;
  uint32_t parity = 0;

  __device__ bool exists() const { return tokens.exists(); }
  __device__ int64_t token() const { return tokens.token(); }
  __device__ void advance(const DispatchArgs& args) {
    if (++stage == args.shared.stages) {
      stage = 0;
      parity ^= 1;
    }
    if (++item == args.num_items) {
      item = 0;
      tokens.advance();
    }
  }
};

// The first lane loads the piece at `at` into its stage.
template <typename Tokens>
__device__ inline void load_piece(const Block& block, const Cursor<Tokens>& at) {
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
        args.source[segment.field] + at.token() * args.field_bytes[segment.field] + segment.offset,
        segment.bytes, barrier);
  }
}

// Fills the stages of this warp; returns the first piece that has not been asked for.
template <typename Tokens>
__device__ inline Cursor<Tokens> start_loads(const Block& block, const Tokens& tokens) {
  const DispatchArgs& args = block.args;
  Cursor<Tokens> at{tokens};
  init_stage_barriers(args.shared.stages, block.lane(), [&](int i) { return block.barrier(i); });
  for (int i = 0; i < args.shared.stages && at.exists(); ++i) {
    if (block.lane() == 0) {
      load_piece(block, at);
    }
    at.advance(args);
  }
  return at;
}

// Call it when the stores of the latest stage have been issued.  The stage before that one is free
// once its stores have read it, and is filled again.
template <typename Tokens>
__device__ inline void load_next(const Block& block, Cursor<Tokens>& next, bool is_first) {
  ptx::bulk_wait_read<1>();
  __syncwarp();
  if (!is_first && next.exists()) {
    if (block.lane() == 0) {
      load_piece(block, next);
    }
    next.advance(block.args);
  }
}

// A block may not end while its loads are under way.
__device__ inline void await_loads(const Block& block) {
  Cursor<WarpTokens> at{WarpTokens(block)};
  for (int i = 0; i < block.args.shared.stages && at.exists(); ++i) {
    if (block.args.items[at.item].bytes > 0) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
    }
    at.advance(block.args);
  }
}

// The address of a field of row `row` of rank `d`.
__device__ inline std::byte* place_of(const Block& block, int field, int d, int64_t row) {
  return reinterpret_cast<std::byte*>(block.field_base(field)[d]) +
         row * block.args.field_bytes[field];
}

// One lane stores the piece that is in a stage to row `row` of rank `d`.
__device__ inline void store_piece(
    const Block& block, const StageItem& item, int stage, int d, int64_t row) {
  for (int s = item.first; s < item.first + item.count; ++s) {
    const Segment segment = block.args.segments[s];
    ptx::bulk_store(place_of(block, segment.field, d, row) + segment.offset,
                    block.stage(stage) + segment.stage_offset, segment.bytes);
  }
}

// Stores those payloads of the token that do not go in bulk to row `row` of rank `d`.
__device__ inline void store_plain(const Block& block, int64_t token, int d, int64_t row) {
  const DispatchArgs& args = block.args;
  for (int f = 0; f < args.num_payloads; ++f) {
    if ((args.in_bulk >> f & 1) == 0) {
      copy_plain(place_of(block, f, d, row), args.source[f] + token * args.field_bytes[f],
                 args.field_bytes[f], block.lane());
    }
  }
}

// One of a token's selections.
struct Selection {
  int32_t id = -1;
  float weight = 0.0f;
  int rank = -1;   // of the expert
  int local = -1;  // its index there
};

__device__ inline Selection load_selection(const Block& block, int64_t token, int slot) {
  const DispatchArgs& args = block.args;
  Selection own;
  if (slot < args.topk) {
    own.id = args.ids[token * args.topk + slot];
    own.weight = args.weights != nullptr ? __ldg(args.weights + token * args.topk + slot) : 0.0f;
  }
  // Ids that come with a layout have not been checked.
  const bool is_expert = own.id >= 0 && own.id < args.num_experts;
  own.rank = is_expert ? __ldg(args.rank_of + own.id) : -1;
  own.local = is_expert ? __ldg(args.local_of + own.id) : -1;
  return own;
}

// Stores a copy's ids, weights and token number; there is a lane for each slot.
__device__ inline void store_ids(
    const Block& block, int64_t token, int d, int64_t row, const Selection& own, int slot) {
  const DispatchArgs& args = block.args;
  const auto place = [&](int field) { return place_of(block, field, d, row); };
  const bool is_here = own.id >= 0 && own.rank == d;
  if (slot < args.topk) {
    const IdsOut ids{reinterpret_cast<int32_t*>(place(args.num_payloads)), args.ids.words_per_id};
    ids.set(slot, is_here ? own.local : -1);
    if (args.weights != nullptr) {
      reinterpret_cast<float*>(place(args.num_payloads + 1))[slot] = is_here ? own.weight : 0.0f;
    }
  }
  if (slot == 0) {
    *reinterpret_cast<int32_t*>(place(args.num_payloads + 2)) = static_cast<int32_t>(token);
  }
}

// Stores this warp's tokens.  `next` is the first piece that has not been asked for.
template <int kWords>
__device__ inline void move_rows(const Block& block, Cursor<WarpTokens> next) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int lane = block.lane();
  constexpr int kLanesOfRanks = RankMaskOf<kWords>::kGroups;
  bool is_first = true;
  for (Cursor<WarpTokens> at{WarpTokens(block)}; at.exists(); at.advance(args)) {
    const int64_t token = at.token();
    int destination[kLanesOfRanks];
    int64_t row[kLanesOfRanks];
    int32_t* index = args.index + token * num_ranks;
#pragma unroll
    for (int i = 0; i < kLanesOfRanks; ++i) {
      const int turn = i * kWarp + lane;
      destination[i] =
          static_cast<int>((turn + block.rank() + token) % static_cast<uint32_t>(num_ranks));
      row[i] = turn < num_ranks ? index[destination[i]] : -1;
      if (row[i] >= 0 && at.item == 0 && !block.is_cached()) {
        row[i] += block.row_base()[destination[i]];
        index[destination[i]] = static_cast<int32_t>(row[i]);  // for the next piece, too
      }
    }
    const Selection own = at.item == 0 ? load_selection(block, token, lane) : Selection{};
    const StageItem item = args.items[at.item];
    if (item.bytes > 0) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
    }
#pragma unroll
    for (int i = 0; i < kLanesOfRanks; ++i) {
      if (row[i] >= 0) {
        store_piece(block, item, at.stage, destination[i], row[i]);
      }
    }
    ptx::bulk_commit();
    if (at.item == 0) {
#pragma unroll
      for (int i = 0; i < kLanesOfRanks; ++i) {
        for (uint32_t lanes = __ballot_sync(~0u, row[i] >= 0); lanes != 0; lanes &= lanes - 1) {
          const int from = __ffs(static_cast<int>(lanes)) - 1;
          const int d = __shfl_sync(~0u, destination[i], from);
          const int64_t to = __shfl_sync(~0u, row[i], from);
          store_plain(block, token, d, to);
          if (!block.is_cached()) {
            store_ids(block, token, d, to, own, lane);
          }
        }
      }
    }
    load_next(block, next, is_first);
    is_first = false;
  }
  ptx::bulk_wait<0>();  // not _read: a rank that is told of the rows must find them
}

}  // namespace moebius::comm::high_throughput_dispatch
