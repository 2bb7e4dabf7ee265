// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch within a node, in one launch: count, tell, move, tell.
//
// Grid: a few blocks, an SM each, that are all resident at once; block b of B has the tokens
// [T b / B, T (b+1) / B).  Steps:
//   count     each block counts its copies per rank and selections per expert, and gives every copy
//             its place among the block's; the block that comes last adds up and sends the notices
//   exchange  every block reads the notices of all ranks in its own control window: the count
//             matrix says where every copy ends up, and which banks are too small
//   move      each warp takes tokens in turn.  A token's row comes in once, by bulk copies into one
//             of the warp's stages, and goes out to each destination from there; a stage is filled
//             again when the stores before the latest have been read out of it.  Destinations are
//             rotated by rank and token, so that no rank is everybody's first.  Rows go in waves
//             (waves.cuh) where experts are to begin before all rows are there
//   finish    the block that comes last tells every rank, awaits all of them and adds up the
//             selections of the own experts
// A block waits for others of its grid through the notices only, which need the counts of all
// blocks.  So blocks may start late, but none may be kept out for good.
#include "comm/high_throughput/cuda/count.cuh"
#include "comm/high_throughput/cuda/move.cuh"
#include "comm/high_throughput/cuda/waves.cuh"

namespace moebius::comm {

using namespace high_throughput_dispatch;

namespace {

// Marks the rows of this rank's bank that nobody sends as having no experts.
__device__ void mask_rest(const Block& block) {
  const DispatchArgs& args = block.args;
  if (args.capacity_rows == 0 || block.is_cached()) {
    return;
  }
  const IdsOut ids{reinterpret_cast<int32_t*>(block.field_base(args.num_payloads)[block.rank()]),
                   args.ids.words_per_id};
  const int64_t end = static_cast<int64_t>(args.capacity_rows) * args.topk;
  for (int64_t i = static_cast<int64_t>(block.total_rows()[block.rank()]) * args.topk +
                   blockIdx.x * blockDim.x + threadIdx.x;
       i < end; i += gridDim.x * blockDim.x) {
    ids.set(i, -1);
  }
}

// The block that comes last calls it.
__device__ void finish(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int rank = block.rank();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  uint64_t seen;
  bool ok = true;
  for (int r = thread; r < num_ranks; r += threads) {
    publish(block.done(r, rank), block.epoch, 0);
  }
  for (int r = thread; r < num_ranks && ok; r += threads) {
    ok = await_signal(args.signals, block.op(), block.epoch, r, block.done(rank, r), &seen);
  }
  if (!block.is_cached()) {
    for (int l = thread; l < args.num_local && ok; l += threads) {
      uint32_t rows;
      ok = await_expert_rows(block, l, rows);
      args.expert_num_tokens[l] = static_cast<int32_t>(rows);
    }
    for (int i = thread; i < num_ranks * num_ranks; i += threads) {
      args.copies[i] = block.notice(i / num_ranks)[ControlLayout::kCopies + i % num_ranks];
      uint32_t prefix = 0;
      for (int s = 0; s <= i / num_ranks; ++s) {
        prefix += block.notice(s)[ControlLayout::kCopies + i % num_ranks];
      }
      args.rank_prefix[i] = static_cast<int32_t>(prefix);
    }
  }
  CallState& state = *args.state;
  const bool refreshes = is_refresh_due(block.epoch, __ldcg(&state.refresh));
  if (refreshes) {
    refresh_arrived(block);
  }
  if (__syncthreads_and(ok) == 0 || thread != 0) {
    return;
  }
  state.epoch = block.epoch;
  if (refreshes) {
    state.refresh = block.epoch;
  }
  if (!block.is_cached()) {
    *args.num_rows = static_cast<int32_t>(block.total_rows()[rank]);
    state.selections += state.call_selections;
    for (int d = 0; d < num_ranks; ++d) {
      state.copies += block.notice(rank)[ControlLayout::kCopies + d];
    }
  }
}

template <int kWords>
__global__ void __launch_bounds__(kMaxWarps* kWarp, 1)
    dispatch_kernel(const __grid_constant__ DispatchArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const auto index = static_cast<int>(blockIdx.x);
  const auto blocks = static_cast<int>(gridDim.x);
  const Block block{args, shared, __ldcg(&args.state->epoch) + 1,
                    part_begin(args.num_tokens, index, blocks),
                    part_begin(args.num_tokens, index + 1, blocks)};
  const bool may_go_in_waves = args.early_rows != 0;
  Cursor<WarpTokens> next{WarpTokens(block)};
  if (may_go_in_waves) {
    for (int w = static_cast<int>(threadIdx.x); w < kWaves; w += static_cast<int>(blockDim.x)) {
      block.waves_sent()[w] = 0;
    }
  } else {
    next = start_loads(block, next.tokens);  // does not need to know where rows go
  }

  if (!block.is_cached()) {
    count_copies<kWords>(block);
    // A rank that has failed sends no notices.  Otherwise others might learn that banks must grow
    // before they learn that it has failed.
    if (comes_last(&args.state->counted) &&
        !__syncthreads_or(threadIdx.x == 0 && is_aborted(args.signals))) {
      send_notices(block);
    }
  } else if (index == 0) {
    send_notices(block);
  }
  const Stop stop = read_notices(block);
  if (stop != kFail && index == 0 && args.host != nullptr) {
    tell_host(block, stop);
  }
  if (stop != kGo) {
    if (!may_go_in_waves) {
      await_loads(block);
    }
    if (stop == kGrow && comes_last(&args.state->dispatched) && threadIdx.x == 0) {
      args.state->epoch = block.epoch;
    }
    return;
  }
  mask_rest(block);
  if (goes_in_waves(block)) {
    send_ids(block);
    send_waves(block);
  } else {
    move_rows<kWords>(block, may_go_in_waves ? start_loads(block, next.tokens) : next);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    // What the block stored to its peers comes before its ticket; publish() in the last block
    // extends that to its flags.
    ptx::fence_acq_rel_sys();
  }
  if (comes_last(&args.state->dispatched)) {
    finish(block);
  }
}

using Kernel = void (*)(DispatchArgs);
Kernel kernel_for(int num_ranks) {
  return with_rank_mask_words(
      num_ranks, [](auto words) -> Kernel { return dispatch_kernel<decltype(words)::value>; });
}

}  // namespace

cudaError_t load_dispatch_kernels(int num_ranks, int64_t shared_bytes) {
  return cudaFuncSetAttribute(kernel_for(num_ranks), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

cudaError_t launch_dispatch(const DispatchArgs& args, int num_blocks, cudaStream_t stream) {
  kernel_for(args.signals.num_ranks)<<<static_cast<unsigned>(num_blocks),
                                       static_cast<unsigned>(args.shared.warps * kWarp),
                                       args.shared.bytes(), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace moebius::comm
