// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Combine within a node, in one launch: rows go back to the ranks of their tokens, and are summed
// there while others are still on their way.
//
// Grid: a few blocks, an SM each, that are all resident at once.  Warps:
//   push    These take chunks of this rank's rows, the owners of the tokens in turn.  A chunk is
//           contiguous on both sides, so it goes in pieces of a stage, whatever the size of rows.
//           Two pieces later its stores are surely complete and its flag is handed over, so the
//           warp need not stand still meanwhile.  When all chunks are pushed, the warp sums, too.
//   flag    One warp sets the flags that were handed over.  It uses one fence for as many as there
//           are, since a fence takes a microsecond.  It sums when all flags are set.
//   sum     These take the next token of this rank, await the flags of the chunks with its copies,
//           and add the copies in order of rank, then the biases, in f32, and round once.  The
//           addend comes last.
// A rank's window may be written again once it says so with this call's epoch: its kernel has
// begun, so the one before has ended.
#include "comm/device/grid.cuh"
#include "comm/device/signals.cuh"
#include "comm/device/sum_copies.cuh"
#include "comm/high_throughput/cuda/kernels.h"

namespace moebius::comm {

namespace {

constexpr auto kOp = SignalOp::kCombine;

struct Block {
  const CombineArgs& args;
  std::byte* shared;
  uint32_t epoch;
  uint32_t combines;  // before this one

  __device__ int rank() const { return args.signals.rank; }
  __device__ int num_ranks() const { return args.signals.num_ranks; }
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / kWarpLanes; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarpLanes; }

  template <typename T>
  __device__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(shared + offset);
  }
  // What each warp has for itself.
  __device__ std::byte* stage(int i) const {
    return shared + (warp() * args.shared.stages + i) * kPushStageBytes;
  }
  __device__ uint64_t* barrier(int i) const {
    return at<uint64_t>(args.shared.barriers()) + warp() * args.shared.stages + i;
  }
  __device__ const std::byte** rows() const {
    return at<const std::byte*>(args.shared.rows()) + warp() * (num_ranks() + 2);
  }
  __device__ const float** weights() const {
    return at<const float*>(args.shared.weights()) + warp() * num_ranks();
  }
  // What all warps share.
  __device__ CombinePair* pushes() const { return at<CombinePair>(args.shared.pushes()); }
  __device__ CombinePair* receipts() const { return at<CombinePair>(args.shared.receipts()); }
  __device__ CombineWindows* windows() const { return at<CombineWindows>(args.shared.windows()); }
  __device__ uint32_t* slots() const { return at<uint32_t>(args.shared.slots()); }

  __device__ uint64_t* ready(int owner, int source) const {
    return reinterpret_cast<uint64_t*>(args.signals.windows[owner] +
                                       args.control_layout.ready(source));
  }
  // What the ranks of a combine must agree on.
  __device__ uint32_t row_word() const { return args.row_bytes + 4u * args.topk; }
  __device__ float* slot_weights(int owner, uint32_t slot) const {
    return reinterpret_cast<float*>(windows()[owner].slots +
                                    combine_weights_offset(slots()[owner], args.row_bytes)) +
           static_cast<int64_t>(slot) * args.topk;
  }
};

// The flags of complete chunks, on their way from a warp that pushes to the one that sets them.
struct FlagQueue {
  static constexpr uint32_t kSlots = 8;
  uint64_t* flags[kSlots];  // null: there are no more
  uint32_t pushed;          // so far
  uint32_t taken;

  // One thread calls it, after all stores of the chunk have completed.
  __device__ void push(uint64_t* flag) {
    const uint32_t at = pushed;
    while (at - ptx::ld_acquire_cta(&taken) == kSlots) {
    }
    flags[at % kSlots] = flag;
    ptx::st_release_cta(&pushed, at + 1);  // pairs with set_flags: the chunk is complete
  }
};

__device__ void set_flags(const Block& block, FlagQueue* queues) {
  FlagQueue& queue = queues[block.lane() % kMaxPushWarps];
  bool is_open = block.lane() < block.args.shared.push_warps;
  uint32_t taken = 0;
  while (__any_sync(~0u, is_open)) {
    const uint32_t pushed = is_open ? ptx::ld_acquire_cta(&queue.pushed) : taken;
    if (!__any_sync(~0u, pushed != taken)) {
      __nanosleep(64);
      continue;
    }
    ptx::fence_acq_rel_sys();  // with the stores below, it publishes each chunk
    for (; taken != pushed; ++taken) {
      uint64_t* flag = queue.flags[taken % FlagQueue::kSlots];
      is_open = flag != nullptr;
      if (is_open) {
        ptx::st_relaxed_sys(flag, make_signal(block.epoch, 0));
      }
    }
    if (block.lane() < block.args.shared.push_warps) {
      ptx::st_release_cta(&queue.taken, taken);
    }
  }
}

// Returns false when a call before this one has failed, since the counts may then be garbage.
__device__ bool read_plan(const Block& block) {
  const CombineArgs& args = block.args;
  for (int r = static_cast<int>(threadIdx.x); r < block.num_ranks();
       r += static_cast<int>(blockDim.x)) {
    block.pushes()[r] =
        combine_pair(args.copies, block.num_ranks(), r, block.rank(), args.rows_per_chunk);
    block.receipts()[r] =
        combine_pair(args.copies, block.num_ranks(), block.rank(), r, args.rows_per_chunk);
    block.windows()[r] = {args.slots[r], reinterpret_cast<uint64_t*>(args.flags[r])};
    block.slots()[r] = combine_slots(args.copies, block.num_ranks(), r);
  }
  const bool is_last_thread = threadIdx.x == blockDim.x - 1;  // the first ones are at work
  return __syncthreads_or(is_last_thread && is_aborted(args.signals)) == 0;
}

// The chunks that a warp pushes, and the pieces of each.  In every round each warp of the grid has
// one chunk.  They change places from round to round, so that no warp has the chunks of one owner
// alone.
struct PushCursor {
  const Block& block;
  int64_t num_items;  // (owners but this rank) * (most chunks of any)
  int64_t round = -1;
  int owner = 0;
  uint32_t chunk = 0;
  int64_t chunk_bytes = 0;
  int64_t offset = 0;  // of the piece in the chunk
  int stage = 0;
  uint32_t parity = 0;
  bool is_valid = true;

  __device__ explicit PushCursor(const Block& b) : block(b) {
    uint32_t most = 0;
    for (int r = 0; r < b.num_ranks(); ++r) {
      if (r != b.rank()) {
        most = max(most, num_chunks(b.pushes()[r].rows, b.args.rows_per_chunk));
      }
    }
    num_items = static_cast<int64_t>(most) * (b.num_ranks() - 1);
    next_chunk();
  }

  __device__ uint32_t first_row() const { return chunk * block.args.rows_per_chunk; }
  __device__ uint32_t num_rows() const {
    return min(block.args.rows_per_chunk, block.pushes()[owner].rows - first_row());
  }
  __device__ uint32_t piece_bytes() const {
    return static_cast<uint32_t>(min(int64_t{kPushStageBytes}, chunk_bytes - offset));
  }
  __device__ bool is_last_piece() const { return offset + kPushStageBytes >= chunk_bytes; }
  __device__ const std::byte* from() const {
    return block.args.x +
           static_cast<int64_t>(block.pushes()[owner].first_row + first_row()) *
               block.args.row_bytes +
           offset;
  }
  __device__ std::byte* to() const {
    return block.windows()[owner].slots +
           static_cast<int64_t>(block.pushes()[owner].first_slot + first_row()) *
               block.args.row_bytes +
           offset;
  }
  __device__ uint64_t* flag() const {
    return block.windows()[owner].flags + block.pushes()[owner].first_flag + chunk;
  }

  __device__ void next_chunk() {
    const CombineArgs& args = block.args;
    const int64_t warps = static_cast<int64_t>(gridDim.x) * args.shared.push_warps;
    const int64_t warp = static_cast<int64_t>(blockIdx.x) * args.shared.push_warps + block.warp();
    const int others = block.num_ranks() - 1;
    for (;;) {
      ++round;
      if (round * warps >= num_items) {
        is_valid = false;
        return;
      }
      const int64_t item = round * warps + (warp + round) % warps;
      if (item >= num_items) {
        continue;
      }
      chunk = static_cast<uint32_t>(item / others);
      owner = static_cast<int>((block.rank() + 1 + item % others) % block.num_ranks());
      if (chunk < num_chunks(block.pushes()[owner].rows, args.rows_per_chunk)) {
        break;
      }
    }
    offset = 0;
    chunk_bytes = static_cast<int64_t>(num_rows()) * args.row_bytes;
  }
  __device__ void next_piece() {
    if (++stage == block.args.shared.stages) {
      stage = 0;
      parity ^= 1;
    }
    offset += kPushStageBytes;
    if (offset >= chunk_bytes) {
      next_chunk();
    }
  }
};

__device__ void push_weights(const Block& block, const PushCursor& at) {
  const CombineArgs& args = block.args;
  if (args.weights == nullptr) {
    return;
  }
  const CombinePair& pair = block.pushes()[at.owner];
  const float* from =
      args.weights + static_cast<int64_t>(pair.first_row + at.first_row()) * args.topk;
  float* to = block.slot_weights(at.owner, pair.first_slot + at.first_row());
  copy_plain(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
             static_cast<int64_t>(at.num_rows()) * args.topk * 4, block.lane());
}

__device__ void push_in_bulk(const Block& block, PushCursor at, PushCursor next, FlagQueue& queue) {
  const bool is_first_lane = block.lane() == 0;
  // The flags of the chunks that ended with the latest pieces.
  uint64_t* flag_before = nullptr;
  uint64_t* flag_before_that = nullptr;
  for (bool is_first = true; at.is_valid; at.next_piece(), is_first = false) {
    uint64_t* flag = nullptr;
    if (at.is_last_piece()) {
      push_weights(block, at);
      flag = at.flag();
    }
    __syncwarp();  // the first lane publishes the weights of all lanes
    if (is_first_lane) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
      ptx::bulk_store(at.to(), block.stage(at.stage), at.piece_bytes());
      ptx::bulk_commit();
      if (flag_before_that != nullptr) {
        ptx::bulk_wait<2>();
        queue.push(flag_before_that);
      }
      ptx::bulk_wait_read<1>();
      if (!is_first && next.is_valid) {
        ptx::mbarrier_arrive_expect_tx(block.barrier(next.stage), next.piece_bytes());
        ptx::bulk_load(block.stage(next.stage), next.from(), next.piece_bytes(),
                       block.barrier(next.stage));
      }
    }
    if (!is_first && next.is_valid) {
      next.next_piece();
    }
    flag_before_that = flag_before;
    flag_before = flag;
  }
  if (is_first_lane) {
    ptx::bulk_wait<0>();
    if (flag_before_that != nullptr) {
      queue.push(flag_before_that);
    }
    if (flag_before != nullptr) {
      queue.push(flag_before);
    }
  }
  __syncwarp();
}

__device__ bool await_owners(const Block& block) {
  const SignalContext& signals = block.args.signals;
  bool ok = true;
  for (int r = block.lane(); r < block.num_ranks() && ok; r += kWarpLanes) {
    uint64_t seen;
    ok = await_signal(signals, kOp, block.epoch, r, block.ready(block.rank(), r), &seen);
    // An owner that is in its next combine already has found nothing wrong with this one.
    const bool is_of_this = ok && signal_epoch(seen) == block.epoch;
    if (is_of_this && signal_value(seen) != block.row_word()) {
      raise_fault(signals,
                  {FaultReason::kMismatch, kOp, static_cast<uint8_t>(block.rank()),
                   static_cast<uint8_t>(r), block.epoch},
                  make_signal(signal_value(seen), block.row_word()));
      ok = false;
    }
  }
  return __all_sync(~0u, ok);
}

__device__ void push_rows(const Block& block, FlagQueue& queue) {
  const CombineArgs& args = block.args;
  PushCursor at(block);
  if (!args.in_bulk) {
    if (!await_owners(block)) {
      return;
    }
    for (; at.is_valid; at.next_chunk()) {
      copy_plain(at.to(), at.from(), at.chunk_bytes, block.lane());
      push_weights(block, at);
      __syncwarp();
      if (block.lane() == 0) {
        queue.push(at.flag());
      }
    }
    return;
  }
  // Rows are on their way into the stages while the owners are awaited.
  init_stage_barriers(args.shared.stages, block.lane(), [&](int i) { return block.barrier(i); });
  PushCursor next = at;
  int loads = 0;
  for (; loads < args.shared.stages && next.is_valid; ++loads, next.next_piece()) {
    if (block.lane() == 0) {
      ptx::mbarrier_arrive_expect_tx(block.barrier(next.stage), next.piece_bytes());
      ptx::bulk_load(block.stage(next.stage), next.from(), next.piece_bytes(),
                     block.barrier(next.stage));
    }
  }
  if (await_owners(block)) {
    push_in_bulk(block, at, next, queue);
    return;
  }
  for (int i = 0; i < loads; ++i) {  // a block may not end while they are under way
    ptx::mbarrier_wait_parity(block.barrier(i), 0);
  }
}

__device__ int64_t take_token(const Block& block) {
  unsigned long long token = 0;
  if (block.lane() == 0) {
    token = atomicAdd(&block.args.state->taken[block.combines & 1], 1ull);
  }
  return static_cast<int64_t>(__shfl_sync(~0u, token, 0));
}

// Returns when all tokens are taken; false when a wait has failed.
template <typename Type, bool kAdds, int kWords>
__device__ bool sum_tokens(const Block& block) {
  const CombineArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int lane = block.lane();
  const uint32_t lanes_before = (1u << lane) - 1;
  const std::byte** rows = block.rows();
  const float** weights = block.weights();
  constexpr int kLanesOfRanks = RankMaskOf<kWords>::kGroups;
  constexpr int kUnrolled = kWords == 1 ? kLanesOfRanks : 1;
  const CombineWindows own = block.windows()[block.rank()];
  for (int64_t token = take_token(block); token < args.num_tokens;) {
    const int64_t next_token = take_token(block);
    int num_rows = 0;
    bool ok = true;
#pragma unroll kUnrolled
    for (int i = 0; i < kLanesOfRanks; ++i) {
      const int r = i * kWarpLanes + lane;
      const int32_t index = r < num_ranks ? __ldg(args.index + token * num_ranks + r) : -1;
      const uint32_t lanes = __ballot_sync(~0u, index >= 0);
      if (index >= 0) {
        const int place = num_rows + __popc(lanes & lanes_before);
        if (r == block.rank()) {
          rows[place] = args.x + static_cast<int64_t>(index) * args.row_bytes;
          if (args.weights != nullptr) {
            weights[place] = args.weights + static_cast<int64_t>(index) * args.topk;
          }
        } else {
          const CombinePair& pair = block.receipts()[r];
          const uint32_t copy = static_cast<uint32_t>(index) - pair.first_row;
          const uint32_t slot = pair.first_slot + copy;
          uint64_t seen;
          ok = ok && await_signal(args.signals, kOp, block.epoch, r,
                                  own.flags + pair.first_flag + copy / args.rows_per_chunk, &seen);
          rows[place] = own.slots + static_cast<int64_t>(slot) * args.row_bytes;
          weights[place] = block.slot_weights(block.rank(), slot);
        }
      }
      num_rows += __popc(lanes);
    }
    if (!__all_sync(~0u, ok)) {
      return false;
    }
    const int num_copies = num_rows;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      if (args.bias[b] != nullptr) {
        if (lane == 0) {
          rows[num_rows] = args.bias[b] + token * args.row_bytes;
        }
        ++num_rows;
      }
    }
    __syncwarp();
    const std::byte* addend = kAdds ? args.addend + token * args.out_step : nullptr;
    sum_rows<Type, kAdds>(rows, num_rows, addend, args.row_bytes, args.is_aligned,
                          args.out + token * args.out_step, lane);
    if (args.out_weights != nullptr && lane < args.topk) {
      float sum = 0.0f;
      for (int i = 0; i < num_copies; ++i) {
        sum += weights[i][lane];
      }
      args.out_weights[token * args.topk + lane] = sum;
    }
    __syncwarp();
    token = next_token;
  }
  return true;
}

// kAdds says that there is an addend.
template <typename Type, bool kAdds, int kWords>
__global__ void __launch_bounds__(kCombineWarps* kWarpLanes, 1)
    combine_kernel(const __grid_constant__ CombineArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const Block block{args, shared, __ldcg(&args.state->epoch) + 1, __ldcg(&args.state->combines)};
  if (blockIdx.x == 0) {
    for (int r = static_cast<int>(threadIdx.x); r < block.num_ranks();
         r += static_cast<int>(blockDim.x)) {
      publish(block.ready(r, block.rank()), block.epoch, block.row_word());
    }
  }
  __shared__ FlagQueue queues[kMaxPushWarps];
  if (threadIdx.x < kMaxPushWarps) {
    queues[threadIdx.x].pushed = queues[threadIdx.x].taken = 0;
  }
  if (!read_plan(block)) {
    return;
  }
  if (block.warp() < args.shared.push_warps) {
    push_rows(block, queues[block.warp()]);
    if (block.lane() == 0) {
      queues[block.warp()].push(nullptr);
    }
    __syncwarp();
  } else if (block.warp() == args.shared.push_warps) {
    set_flags(block, queues);
  }
  const bool ok = sum_tokens<Type, kAdds, kWords>(block);
  const bool all_ok = __syncthreads_and(ok) != 0;
  if (all_ok && comes_last(&args.state->combined) && threadIdx.x == 0) {
    args.state->epoch = block.epoch;
    args.state->combines = block.combines + 1;
    args.state->taken[(block.combines + 1) & 1] = 0;
  }
}

template <bool kAdds>
const void* kernel_of(DType dtype, int num_ranks) {
  return with_row_type(dtype, [&](auto type) {
    return with_rank_mask_words(num_ranks, [](auto words) {
      return reinterpret_cast<const void*>(
          combine_kernel<decltype(type), kAdds, decltype(words)::value>);
    });
  });
}

}  // namespace

cudaError_t load_combine_kernels(int num_ranks, int64_t shared_bytes) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const void* kernel :
         {kernel_of<false>(dtype, num_ranks), kernel_of<true>(dtype, num_ranks)}) {
      const cudaError_t status = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
      if (status != cudaSuccess) {
        return status;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t launch_combine(const CombineArgs& args, int num_blocks, cudaStream_t stream) {
  void* arguments[] = {const_cast<CombineArgs*>(&args)};
  const int num_ranks = args.signals.num_ranks;
  const void* kernel = args.addend != nullptr ? kernel_of<true>(args.dtype, num_ranks)
                                              : kernel_of<false>(args.dtype, num_ranks);
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(num_blocks)),
                          dim3(kCombineWarps * kWarpLanes), arguments, args.shared.bytes(), stream);
}

}  // namespace moebius::comm
