// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The step of a high-throughput dispatch that moves rows in waves (row_arrivals.h): a token's row
// is loaded once for each wave in which some of its copies go.
#pragma once

#include "comm/high_throughput/cuda/move.cuh"

namespace moebius::comm::high_throughput_dispatch {

// When a wave is told, the stores of this many later pieces of the warp may be under way.
// Why not none: a warp that waits for its stores does not send.
// With it 4096 tokens take 801 instead of 848 us (docs/performance/gpu_experts.md).
constexpr int kPiecesUnderWay = 4;

// The tokens of a warp, wave by wave.  A token comes once in each wave in which it has copies.
class WaveTokens {
 public:
  __device__ explicit WaveTokens(const Block& block)
      : block_(&block), token_(block.begin + block.warp()) {
    find();
  }

  __device__ bool exists() const { return wave_ < kWaves; }
  __device__ int wave() const { return wave_; }
  __device__ int64_t token() const {
    return token_ +
           int64_t{chunk_ * kWarp + __ffs(static_cast<int>(left_)) - 1} * block_->args.shared.warps;
  }
  __device__ void advance() {
    left_ &= left_ - 1;
    find();
  }

 private:
  __device__ void find() {
    while (left_ == 0) {
      if (++chunk_ == kWaveChunks) {
        chunk_ = 0;
        ++wave_;
      }
      if (wave_ == kWaves) {
        break;
      }
      left_ = block_->due(wave_, chunk_);
    }
  }

  const Block* block_;
  int64_t token_;  // the first
  int wave_ = 1;
  int chunk_ = -1;
  uint32_t left_ = 0;  // a bit for each token of the chunk that is still to come in this wave
};

// Writes what WaveTokens reads.
__device__ inline void note_due(const Block& block) {
  const DispatchArgs& args = block.args;
  for (int chunk = 0; chunk < kWaveChunks; ++chunk) {
    const int64_t token =
        block.begin + block.warp() + int64_t{chunk * kWarp + block.lane()} * args.shared.warps;
    const uint32_t waves = token < block.end ? args.waves_of[token] : 0;
    for (int wave = 1; wave < kWaves; ++wave) {
      const uint32_t due = __ballot_sync(~0u, waves >> wave & 1);
      if (block.lane() == 0) {
        block.due(wave, chunk) = due;
      }
    }
  }
  __syncwarp();
}

// A warp calls it when its stores of the wave are complete.  The last warp of all blocks tells the
// ranks.
__device__ inline void tell_wave(const Block& block, int wave) {
  const DispatchArgs& args = block.args;
  __syncwarp();
  if (block.lane() != 0) {
    return;
  }
  __threadfence_block();  // pairs with itself in the other warps: their stores come first
  const bool is_last_of_block =
      atomicAdd(block.waves_sent() + wave, 1u) + 1 == static_cast<uint32_t>(args.shared.warps);
  __threadfence_block();
  if (!is_last_of_block) {
    return;
  }
  // What the block stored to its peers comes before its ticket; the fence of the last block below
  // extends that to the words that it stores.
  ptx::fence_acq_rel_sys();
  if (ptx::atom_add_acq_rel_gpu(&args.state->waves_sent[wave], 1) + 1 == gridDim.x) {
    args.state->waves_sent[wave] = 0;
    ptx::fence_acq_rel_sys();  // with the stores below, pairs with await_wave: rows of the wave
    for (int i = 1; i <= block.num_ranks(); ++i) {
      const int r = (block.rank() + i) % block.num_ranks();
      ptx::st_relaxed_sys(block.arrived(r, wave, block.rank()), make_signal(block.epoch, 0));
    }
  }
}

// The block that comes last calls it; see is_refresh_due.
__device__ inline void refresh_arrived(const Block& block) {
  const int num_ranks = block.num_ranks();
  for (int i = static_cast<int>(threadIdx.x); i < kWaves * num_ranks;
       i += static_cast<int>(blockDim.x)) {
    ptx::st_relaxed_sys(block.arrived(i % num_ranks, i / num_ranks, block.rank()),
                        make_signal(block.epoch, 0));
  }
}

// Sends wave 0: ids, weights and token numbers of all copies of this block's tokens.  It also turns
// places among the block's copies into final rows.  A warp takes several tokens at a time, a lane
// per selection: one after the other they would take longer than rows do.
__device__ inline void send_ids(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  int lanes = 1;  // of a token
  while (lanes < args.topk) {
    lanes *= 2;
  }
  const int slot = block.lane() % lanes;
  const int64_t step = args.shared.warps * (kWarp / lanes);
  int64_t token = block.begin + threadIdx.x / lanes;
  Selection next = token < block.end ? load_selection(block, token, slot) : Selection{};
  for (; token < block.end; token += step) {
    const Selection own = next;
    if (token + step < block.end) {
      next = load_selection(block, token + step, slot);
    }
#pragma unroll 8
    for (int d = 0; d < num_ranks; ++d) {
      int32_t* index = args.index + token * num_ranks + d;
      const int32_t place = __ldcg(index);
      if (place >= 0) {
        store_ids(block, token, d, place + block.row_base()[d], own, slot);
      }
    }
  }
  // All lanes have read the places.
  __syncthreads();
  const auto threads = static_cast<int>(blockDim.x);
  for (int64_t i = block.begin * num_ranks + threadIdx.x; i < block.end * num_ranks; i += threads) {
    if (args.index[i] >= 0) {
      args.index[i] += static_cast<int32_t>(block.row_base()[i % num_ranks]);
    }
  }
  __syncthreads();
  tell_wave(block, 0);
}

// Each lane has the token's copy for the rank of its number.
struct Copies {
  int32_t row = -1;
  int wave = 0;
};

// Sends the other waves.  Each is told once its stores are complete.
__device__ inline void send_waves(const Block& block) {
  const DispatchArgs& args = block.args;
  const int lane = block.lane();
  const auto copies_of = [&](const Cursor<WaveTokens>& at) {
    Copies copies;
    if (at.exists() && lane < block.num_ranks()) {
      const int64_t i = at.token() * block.num_ranks() + lane;
      copies = {args.index[i], args.wave_of[i]};
    }
    return copies;
  };
  note_due(block);
  const WaveTokens tokens(block);
  Cursor<WaveTokens> next = start_loads(block, tokens);
  Cursor<WaveTokens> at{tokens};
  Copies copies = copies_of(at);
  bool is_first = true;
  int told = 1;
  static_assert(kWaves <= 16 && kPiecesUnderWay <= 8, "of eight pieces, four bits for each");
  uint32_t last_waves = 0x11111111;  // the waves of the last pieces; the latest is lowest
  while (at.exists()) {
    const int64_t token = at.token();
    const int wave = at.tokens.wave();
    const int64_t row = copies.row >= 0 && copies.wave == wave ? copies.row : -1;
    const StageItem item = args.items[at.item];
    if (item.bytes > 0) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
    }
    if (row >= 0) {
      store_piece(block, item, at.stage, lane, row);
    }
    ptx::bulk_commit();
    if (at.item == 0) {
      for (uint32_t lanes = __ballot_sync(~0u, row >= 0); lanes != 0; lanes &= lanes - 1) {
        const int d = __ffs(static_cast<int>(lanes)) - 1;
        store_plain(block, token, d, __shfl_sync(~0u, row, d));
      }
    }
    at.advance(args);
    copies = copies_of(at);  // they come while the stores are read
    load_next(block, next, is_first);
    is_first = false;
    last_waves = last_waves << 4 | static_cast<uint32_t>(wave);
    const int oldest = static_cast<int>(last_waves >> 4 * (kPiecesUnderWay - 1) & 15);
    if (told < oldest) {
      ptx::bulk_wait<kPiecesUnderWay>();
      for (; told < oldest; ++told) {
        tell_wave(block, told);
      }
    }
  }
  ptx::bulk_wait<0>();
  for (; told < kWaves; ++told) {
    tell_wave(block, told);
  }
}

}  // namespace moebius::comm::high_throughput_dispatch
