// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch within a node, in one launch: count, tell, move, tell.
//
// Grid: a few blocks (an SM each), all resident at once; block b has tokens [T b / B, T (b+1) / B).
//   count     each block counts its copies per rank and selections per expert, and gives every copy
//             its place among the block's; the block that comes last adds up and sends the notices
//   exchange  every block reads the notices of all ranks in its own control window: the count
//             matrix says where every copy ends up, and which banks are too small
//   move      each warp takes tokens in turn.  A token's row comes in once, by bulk copies into one
//             of the warp's stages, and goes out to each destination from there; a stage is filled
//             again when the stores before the latest have been read out of it.  Destinations are
//             rotated by rank and token, so that no rank is everybody's first
//   finish    the block that comes last tells every rank, awaits all of them and adds up the
//             selections of the own experts
// No block waits for another of the same grid but through the notices, which all blocks have to
// count for: blocks may start late, but none may be kept out for good.
#include "comm/cuda/grid.cuh"
#include "comm/cuda/high_throughput_kernels.h"
#include "comm/cuda/signals.cuh"

namespace moebius::comm {

namespace {

constexpr int kWarp = kWarpLanes;
constexpr int kLanesOfRanks = kMaxCudaRanks / kWarp;

// Why a block does not move rows.
enum Stop : int { kGo = 0, kGrow = 1, kFail = 2 };

struct Block {
  const DispatchArgs& args;
  std::byte* shared;
  uint32_t epoch;
  int64_t begin, end;  // its tokens

  __device__ int rank() const { return args.signals.rank; }
  __device__ int num_ranks() const { return args.signals.num_ranks; }
  __device__ bool is_cached() const { return args.topk == 0; }
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ SignalOp op() const {
    return is_cached() ? SignalOp::kCachedDispatch : SignalOp::kDispatch;
  }

  template <typename T>
  __device__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(shared + offset);
  }
  __device__ std::byte* stage(int i) const {
    return shared + (warp() * args.shared.stages + i) * args.shared.stage_bytes;
  }
  __device__ uint64_t* barrier(int i) const {
    return at<uint64_t>(args.shared.barriers()) + warp() * args.shared.stages + i;
  }
  __device__ uint64_t* field_base(int field) const {
    return at<uint64_t>(args.shared.field_base()) + field * num_ranks();
  }
  __device__ uint32_t* notice(int source) const {
    return at<uint32_t>(args.shared.notices()) + source * num_notice_words();
  }
  __device__ uint32_t* row_base() const { return at<uint32_t>(args.shared.row_base()); }
  __device__ uint32_t* total_rows() const { return at<uint32_t>(args.shared.total_rows()); }
  __device__ uint32_t* running() const { return at<uint32_t>(args.shared.running()); }
  __device__ uint32_t* warp_counts() const { return at<uint32_t>(args.shared.warp_counts()); }
  __device__ uint32_t* histogram() const { return at<uint32_t>(args.shared.histogram()); }

  // Those that are for everybody.
  __device__ int num_notice_words() const { return ControlLayout::kCopies + num_ranks(); }
  // Word of the notice of `source` in `owner`'s window.
  __device__ uint64_t* notice_word(int owner, int source, int word) const {
    return reinterpret_cast<uint64_t*>(args.control[owner] +
                                       args.control_layout.notice(epoch, source)) +
           word;
  }
  __device__ uint64_t* done(int owner, int source) const {
    return reinterpret_cast<uint64_t*>(args.control[owner] + args.control_layout.done(source));
  }
};

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
__device__ void load_piece(const Block& block, const Cursor& at) {
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
__device__ Cursor start_loads(const Block& block) {
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
__device__ void await_loads(const Block& block) {
  Cursor at{block.begin + block.warp()};
  for (int i = 0; i < block.args.shared.stages && at.token < block.end; ++i) {
    if (block.args.items[at.item].bytes > 0) {
      ptx::mbarrier_wait_parity(block.barrier(at.stage), at.parity);
    }
    at.advance(block.args);
  }
}

// The ranks that a token goes to; counts its selections.
__device__ uint64_t ranks_of(const Block& block, int64_t token) {
  const DispatchArgs& args = block.args;
  uint64_t ranks = 0;
  // Several at a time: each is two loads that depend on each other.
  constexpr int kAtOnce = 8;
  for (int first = 0; first < args.topk; first += kAtOnce) {
    int32_t ids[kAtOnce];
    int32_t rank_of[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      ids[i] = first + i < args.topk ? __ldg(args.ids + token * args.topk + first + i) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      rank_of[i] = ids[i] >= 0 && ids[i] < args.num_experts ? __ldg(args.rank_of + ids[i]) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = ids[i];
      if (rank_of[i] >= 0) {
        ranks |= uint64_t{1} << rank_of[i];
        atomicAdd(block.histogram() + id, 1u);
      } else if (id != -1) {
        const auto self = static_cast<uint8_t>(block.rank());
        raise_fault(args.signals, {FaultReason::kBadId, block.op(), self, self, block.epoch},
                    make_signal(static_cast<uint32_t>(token), static_cast<uint32_t>(id)));
      }
    }
  }
  return ranks;
}

// Gives every copy of this block its place among those that go to the same rank.
__device__ void count_copies(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int num_warps = args.shared.warps;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < args.num_experts; e += threads) {
    block.histogram()[e] = 0;
  }
  for (int r = thread; r < num_ranks; r += threads) {
    block.running()[r] = 0;
  }
  __syncthreads();
  const uint32_t lanes_before = (1u << block.lane()) - 1;
  uint32_t* warp_counts = block.warp_counts();
  uint32_t* own_counts = warp_counts + block.warp() * num_ranks;
  for (int64_t first = block.begin; first < block.end; first += threads) {
    const int64_t token = first + thread;
    const uint64_t ranks = token < block.end ? ranks_of(block, token) : 0;
    for (int r = 0; r < num_ranks; ++r) {
      const uint32_t lanes = __ballot_sync(~0u, ranks >> r & 1);
      if (block.lane() == 0) {
        own_counts[r] = __popc(lanes);
      }
    }
    __syncthreads();
    for (int r = thread; r < num_ranks; r += threads) {
      uint32_t sum = block.running()[r];
      for (int w = 0; w < num_warps; ++w) {
        const uint32_t count = warp_counts[w * num_ranks + r];
        warp_counts[w * num_ranks + r] = sum;
        sum += count;
      }
      block.running()[r] = sum;
    }
    __syncthreads();
    for (int r = 0; r < num_ranks; ++r) {
      const uint32_t lanes = __ballot_sync(~0u, ranks >> r & 1);
      if (token < block.end) {
        const uint32_t place = own_counts[r] + __popc(lanes & lanes_before);
        args.index[token * num_ranks + r] = ranks >> r & 1 ? static_cast<int32_t>(place) : -1;
      }
    }
    __syncwarp();  // own_counts is written again by the first lane
  }
  uint32_t* counts = args.block_counts + blockIdx.x * (num_ranks + args.num_experts);
  for (int i = thread; i < num_ranks + args.num_experts; i += threads) {
    counts[i] = i < num_ranks ? block.running()[i] : block.histogram()[i - num_ranks];
  }
}

// The sum over blocks [0, num_blocks) of one of their counts.
__device__ uint32_t sum_block_counts(const DispatchArgs& args,
                                     int num_counts,
                                     int index,
                                     uint32_t num_blocks) {
  uint32_t sum = 0;
#pragma unroll 8
  for (uint32_t b = 0; b < num_blocks; ++b) {
    sum += __ldcg(args.block_counts + b * num_counts + index);
  }
  return sum;
}

// By the block that counted last, or the first one along a known route.
__device__ void send_notices(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  const int num_counts = num_ranks + args.num_experts;
  const int rank = block.rank();
  __shared__ uint32_t selections;
  if (!block.is_cached()) {
    if (thread == 0) {
      selections = 0;
    }
    __syncthreads();
    for (int i = thread; i < num_counts; i += threads) {
      const uint32_t sum = sum_block_counts(args, num_counts, i, gridDim.x);
      if (i < num_ranks) {
        block.running()[i] = sum;
      } else {
        block.histogram()[i - num_ranks] = sum;
        atomicAdd(&selections, sum);
      }
    }
    __syncthreads();
    if (thread == 0) {
      args.state->call_selections = selections;
    }
  }
  // The other blocks take the own notice for news that all have counted.  Pairs with their awaits.
  ptx::fence_acq_rel_gpu();
  const int num_words =
      block.is_cached() ? static_cast<int>(ControlLayout::kCopies) : block.num_notice_words();
  for (int i = thread; i < num_ranks * num_words; i += threads) {
    const int word = i % num_words;
    uint32_t value = args.bank;
    if (word >= ControlLayout::kCopies) {
      value = block.running()[word - ControlLayout::kCopies];
    } else if (word == ControlLayout::kBankUnits) {
      value = args.bank_units;
    } else if (word == ControlLayout::kCapacityRows) {
      value = args.capacity_rows;
    } else if (word == ControlLayout::kRowBytes) {
      value = args.row_bytes;
    }
    ptx::st_relaxed_sys(block.notice_word(i / num_words, rank, word),
                        make_signal(block.epoch, value));
  }
  if (!block.is_cached()) {
    for (int e = thread; e < args.num_experts; e += threads) {
      const int word = block.num_notice_words() + __ldg(args.local_of + e);
      ptx::st_relaxed_sys(block.notice_word(__ldg(args.rank_of + e), rank, word),
                          make_signal(block.epoch, block.histogram()[e]));
    }
  }
}

// The notices of all ranks into shared memory, and what follows from them for each destination.
__device__ Stop read_notices(const Block& block) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  const int rank = block.rank();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  const int num_words = block.num_notice_words();
  int stop = thread == 0 && is_aborted(args.signals) ? kFail : kGo;
  for (int i = thread; i < num_ranks * num_words && stop == kGo; i += threads) {
    const int source = i / num_words;
    const int word = i % num_words;
    if (block.is_cached() && word >= ControlLayout::kCopies) {
      block.notice(source)[word] = args.copies[source * num_ranks + word - ControlLayout::kCopies];
      continue;
    }
    uint64_t seen;
    if (await_signal(args.signals, block.is_cached() ? block.op() : SignalOp::kDispatchCounts,
                     block.epoch, source, block.notice_word(rank, source, word), &seen)) {
      block.notice(source)[word] = signal_value(seen);
    } else {
      stop = kFail;
    }
  }
  if (__syncthreads_or(stop) != 0) {
    return kFail;
  }
  Fault fault{FaultReason::kNone, block.op(), static_cast<uint8_t>(rank), 0, block.epoch};
  uint64_t seen = 0;
  for (int d = thread; d < num_ranks; d += threads) {
    uint32_t rows = 0;
    uint32_t base = 0;
    for (int s = 0; s < num_ranks; ++s) {
      base = s == rank ? rows : base;
      rows += block.notice(s)[ControlLayout::kCopies + d];
    }
    if (!block.is_cached()) {
      base += sum_block_counts(args, num_ranks + args.num_experts, d, blockIdx.x);
    }
    block.row_base()[d] = block.is_cached() ? 0 : base;
    block.total_rows()[d] = rows;
    const uint32_t* notice = block.notice(d);
    const uint32_t capacity = notice[ControlLayout::kCapacityRows];
    std::byte* bank = args.banks[notice[ControlLayout::kBank] % kMaxBanks * num_ranks + d];
    int64_t span = 0;
    for (int f = 0; f < args.num_fields; ++f) {
      block.field_base(f)[d] = reinterpret_cast<uint64_t>(bank) + static_cast<uint64_t>(span);
      span += field_span(args.field_bytes[f], capacity > 0 ? capacity : rows);
    }
    if (notice[ControlLayout::kRowBytes] != args.row_bytes) {
      fault.reason = FaultReason::kMismatch;
      seen = make_signal(notice[ControlLayout::kRowBytes], args.row_bytes);
    } else if (capacity > 0 && rows > capacity) {
      fault.reason = FaultReason::kOverflow;
      seen = make_signal(rows, capacity);
    } else if (span > static_cast<int64_t>(notice[ControlLayout::kBankUnits]) * kFieldAlignment) {
      stop = kGrow;
    }
    if (fault.reason != FaultReason::kNone) {
      fault.guilty = static_cast<uint8_t>(d);
      raise_fault(args.signals, fault, seen);
      stop = kFail;
      break;
    }
  }
  return static_cast<Stop>(__syncthreads_or(stop == kFail)   ? kFail
                           : __syncthreads_or(stop == kGrow) ? kGrow
                                                             : kGo);
}

__device__ void tell_host(const Block& block, Stop stop) {
  const DispatchArgs& args = block.args;
  const int num_ranks = block.num_ranks();
  for (int i = static_cast<int>(threadIdx.x); i < num_ranks * num_ranks;
       i += static_cast<int>(blockDim.x)) {
    args.host->copies[i] = block.notice(i / num_ranks)[ControlLayout::kCopies + i % num_ranks];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    // Pairs with the host's load of the word: the counts before it.
    ptx::st_release_sys(
        &args.host->word,
        make_signal(args.host_tag, stop == kGrow ? HostCounts::kGrow : HostCounts::kMoved));
  }
}

// What does not go in bulk of a copy of the token: to row `row` of rank `d`.
__device__ void store_rest(const Block& block,
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
__device__ void move_rows(const Block& block, Cursor next) {
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

// Rows of the own bank that nobody sends have no experts.
__device__ void mask_rest(const Block& block) {
  const DispatchArgs& args = block.args;
  if (args.capacity_rows == 0 || block.is_cached()) {
    return;
  }
  auto* ids = reinterpret_cast<int32_t*>(block.field_base(args.num_payloads)[block.rank()]);
  const int64_t end = static_cast<int64_t>(args.capacity_rows) * args.topk;
  for (int64_t i = static_cast<int64_t>(block.total_rows()[block.rank()]) * args.topk +
                   blockIdx.x * blockDim.x + threadIdx.x;
       i < end; i += gridDim.x * blockDim.x) {
    ids[i] = -1;
  }
}

// By the block that comes last.
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
      uint32_t sum = 0;
      for (int s = 0; s < num_ranks && ok; ++s) {
        ok = await_signal(args.signals, SignalOp::kDispatchCounts, block.epoch, s,
                          block.notice_word(rank, s, block.num_notice_words() + l), &seen);
        sum += signal_value(seen);
      }
      const auto alignment = static_cast<uint32_t>(args.expert_alignment);
      args.expert_num_tokens[l] =
          static_cast<int32_t>((sum + alignment - 1) / alignment * alignment);
    }
    for (int i = thread; i < num_ranks * num_ranks; i += threads) {
      args.copies[i] = block.notice(i / num_ranks)[ControlLayout::kCopies + i % num_ranks];
    }
  }
  if (__syncthreads_and(ok) == 0 || thread != 0) {
    return;
  }
  CallState& state = *args.state;
  state.epoch = block.epoch;
  if (!block.is_cached()) {
    *args.num_rows = static_cast<int32_t>(block.total_rows()[rank]);
    state.selections += state.call_selections;
    for (int d = 0; d < num_ranks; ++d) {
      state.copies += block.notice(rank)[ControlLayout::kCopies + d];
    }
  }
}

__global__ void __launch_bounds__(kMaxWarps* kWarp, 1)
    dispatch_kernel(const __grid_constant__ DispatchArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const auto index = static_cast<int>(blockIdx.x);
  const auto blocks = static_cast<int>(gridDim.x);
  const Block block{args, shared, __ldcg(&args.state->epoch) + 1,
                    part_begin(args.num_tokens, index, blocks),
                    part_begin(args.num_tokens, index + 1, blocks)};
  const Cursor next = start_loads(block);

  if (!block.is_cached()) {
    count_copies(block);
    // A rank that has failed keeps quiet, or others might see banks to grow before they see that.
    if (comes_last(&args.state->counted) && !__syncthreads_or(is_aborted(args.signals))) {
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
    await_loads(block);
    if (stop == kGrow && comes_last(&args.state->dispatched) && threadIdx.x == 0) {
      args.state->epoch = block.epoch;
    }
    return;
  }
  mask_rest(block);
  move_rows(block, next);
  __syncthreads();
  if (threadIdx.x == 0) {
    // What the block stored to its peers, before the ticket; publish in the last block takes it on.
    ptx::fence_acq_rel_sys();
  }
  if (comes_last(&args.state->dispatched)) {
    finish(block);
  }
}

}  // namespace

cudaError_t load_dispatch_kernels(int64_t shared_bytes) {
  return cudaFuncSetAttribute(dispatch_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

cudaError_t launch_dispatch(const DispatchArgs& args, int num_blocks, cudaStream_t stream) {
  dispatch_kernel<<<static_cast<unsigned>(num_blocks),
                    static_cast<unsigned>(args.shared.warps * kWarp), args.shared.bytes(),
                    stream>>>(args);
  return cudaGetLastError();
}

}  // namespace moebius::comm
