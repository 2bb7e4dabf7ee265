// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency dispatch on a GPU; layout and words in low_latency_layout.h, places and banks in
// low_latency_kernels.h.
//
// Grid: any number of blocks that fit on the GPU at once; nothing here waits for another block of
// the same rank but through the window, as for peers.
// Block: kSendWarps senders, kReceiveWarps receivers.  Work goes by warps:
//   send     item (token, part): the part is loaded once, cast, stored to the mailboxes of all
//   ranks
//            with an expert of the token, then its flags.  item (token): the headers.
//            The last block: counts per expert and numbers of messages.
//   receive  receivers build the table of row bases from the counts; then item (message, part).
// Where a message stands in its mailbox, and where its rows go, follows from the ids alone.
// Shared memory: ids, homes of the experts, ranks of each token, counts, bases (see
// DispatchSharedMap).
#include "comm/cuda/low_latency_cast.cuh"
#include "comm/cuda/low_latency_device.cuh"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

constexpr SignalOp kOp = SignalOp::kLowLatencyDispatch;

struct Args {
  LowLatencyDispatchCall dispatch;
  SignalContext signals;
};

// A part of a row as it is, by words of kUnitBytes; small words are not kept in registers.
template <int kUnitBytes, int kElementBytes>
struct CopyPart {
  static constexpr int kUnit = kUnitBytes;
  static constexpr bool kIsCast = false;
  static constexpr int kPartBytes = kPartElements * kElementBytes;
  static constexpr int kWords = kUnit == 16 ? kPartBytes / 16 / 32 : 1;
  using Word = typename UnitWord<kUnit>::Type;
  Word words[kWords];
  const Word* source;
  int num_words;

  __device__ void load(const std::byte* row, int hidden, int part) {
    const int begin = part * kPartBytes;
    const int row_bytes = hidden * kElementBytes;
    num_words = (row_bytes - begin < kPartBytes ? row_bytes - begin : kPartBytes) / kUnit;
    source = reinterpret_cast<const Word*>(row + begin);
    if constexpr (kUnit == 16) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int at = i * 32 + lane_id();
        words[i] = at < num_words ? ptx::ld_nc_no_allocate(source + at) : make_int4(0, 0, 0, 0);
      }
    }
  }
  __device__ void prepare(bool) {}
  __device__ float own_scale() const {
    return 0.0f;
  }

  __device__ void store(std::byte* message, int, int part, float) const {
    auto* to = reinterpret_cast<Word*>(message + part * kPartBytes);
    if constexpr (kUnit == 16) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int at = i * 32 + lane_id();
        if (at < num_words) {
          ptx::st_no_allocate(to + at, words[i]);
        }
      }
    } else {
      for (int at = lane_id(); at < num_words; at += 32) {
        store_word(to + at, __ldg(source + at));
      }
    }
  }
};

struct Block {
  uint32_t epoch;
  uint64_t dead;
  bool has_failed;
  uint64_t bases_done;  // mbarrier of the receivers
};

struct Pointers {
  uint64_t* tokens_ranks;
  uint32_t* placement;
  int32_t* ids;
  int32_t* counts;
  int32_t* bases;
  int32_t* num_messages;
};

__device__ Pointers map_shared(std::byte* shared, const LowLatencyCall& call) {
  const DispatchSharedMap map =
      DispatchSharedMap::make(call.layout, call.num_experts, call.num_local);
  return {reinterpret_cast<uint64_t*>(shared + map.tokens_ranks),
          reinterpret_cast<uint32_t*>(shared + map.placement),
          reinterpret_cast<int32_t*>(shared + map.ids),
          reinterpret_cast<int32_t*>(shared + map.counts),
          reinterpret_cast<int32_t*>(shared + map.bases),
          reinterpret_cast<int32_t*>(shared + map.num_messages)};
}

__device__ __forceinline__ bool is_expert(int32_t id, int num_experts) {
  return static_cast<uint32_t>(id) < static_cast<uint32_t>(num_experts);
}

// Lane r (and r + 32) learns how many tokens before `token` go to rank r, for the ranks in `mask`:
// the message's slot in this rank's mailbox there.
struct Slots {
  int32_t low = 0;
  int32_t high = 0;

  __device__ static Slots of(const uint64_t* tokens_ranks, int token, uint64_t mask) {
    Slots slots;
    for (int first = 0; first < token; first += 32) {
      const int t = first + lane_id();
      const uint64_t ranks = t < token ? tokens_ranks[t] : 0;
      for (uint64_t left = mask; left != 0; left &= left - 1) {
        const int r = __ffsll(static_cast<long long>(left)) - 1;
        const int n = __popc(__ballot_sync(kAllLanes, has_rank(ranks, r)));
        slots.low += r == lane_id() ? n : 0;
        slots.high += r == lane_id() + 32 ? n : 0;
      }
    }
    return slots;
  }
  __device__ int32_t at(int rank) const {
    return __shfl_sync(kAllLanes, rank < 32 ? low : high, rank % 32);
  }
};

// One warp; headers of a token's messages.
__device__ void send_headers(const Args& args,
                             const Block& block,
                             const Pointers& shared,
                             int token) {
  const LowLatencyCall& call = args.dispatch.call;
  const int topk = call.layout.topk;
  const uint64_t mask = shared.tokens_ranks[token];
  if (mask == 0) {
    return;
  }
  // Lane k + topk * j counts a share of the earlier selections of the expert of selection k.
  const int shares = 32 / topk;
  const int k = lane_id() % topk;
  const int share = lane_id() / topk;
  const int end = token * topk + k;
  const int32_t id = shared.ids[end];
  int32_t counted = 0;
  if (share < shares) {
    // Four at a time; the last four may reach past the end.
    for (int at = 4 * share; at < end; at += 4 * shares) {
      const int4 four = *reinterpret_cast<const int4*>(shared.ids + at);
      counted += four.x == id;
      counted += four.y == id && at + 1 < end;
      counted += four.z == id && at + 2 < end;
      counted += four.w == id && at + 3 < end;
    }
  }
  int32_t index = 0;
  for (int j = 0; j < shares; ++j) {
    index += __shfl_sync(kAllLanes, counted, k + topk * j);
  }
  const bool is_valid = is_expert(id, call.num_experts);
  const uint32_t home = is_valid ? shared.placement[id] : 0;
  const int32_t tag = args.dispatch.tags != nullptr ? args.dispatch.tags[token] : -1;

  const Slots slots = Slots::of(shared.tokens_ranks, token, mask);
  const int bank = bank_of(block.epoch);
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    const int r = __ffsll(static_cast<long long>(left)) - 1;
    uint64_t* header =
        word_at(call.windows[r], call.layout.header_at(bank, call.rank, slots.at(r), 0));
    if (lane_id() < topk) {
      const bool is_there = is_valid && home_rank(home) == static_cast<uint32_t>(r);
      const uint32_t placed =
          is_there ? make_placed(home_index(home), static_cast<uint32_t>(index)) : kNotHere;
      ptx::st_relaxed_sys(header + lane_id(), make_signal(block.epoch, placed));
    }
    if (lane_id() == 0) {
      ptx::st_relaxed_sys(header + topk, make_signal(block.epoch, static_cast<uint32_t>(tag)));
      ptx::st_relaxed_sys(header + topk + 1,
                          make_signal(block.epoch, static_cast<uint32_t>(token)));
    }
  }
}

// One warp; `part` has been loaded.
template <typename Part>
__device__ void send_part(const Args& args,
                          const Block& block,
                          const Pointers& shared,
                          int token,
                          int part_index,
                          Part& part) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const uint64_t mask = shared.tokens_ranks[token];
  if (mask == 0) {
    return;
  }
  const Slots slots = Slots::of(shared.tokens_ranks, token, mask);
  const int bank = bank_of(block.epoch);
  part.prepare(args.dispatch.cast == LowLatencyCast::kFp8Ue8m0);
  const float own_scale = part.own_scale();
  // Not all ranks and tokens begin with the same peer.
  const int first = (call.rank + token) % layout.num_ranks;
  for (int i = 0; i < layout.num_ranks; ++i) {
    const int r = first + i < layout.num_ranks ? first + i : first + i - layout.num_ranks;
    if (has_rank(mask, r)) {
      part.store(call.windows[r] + layout.message_at(bank, call.rank, slots.at(r)), layout.hidden,
                 part_index, own_scale);
    }
  }
  __syncwarp();
  if (has_rank(mask, lane_id())) {
    publish(word_at(call.windows[lane_id()],
                    layout.row_flag_at(bank, call.rank, slots.low, part_index)),
            block.epoch, 0);
  }
  if (has_rank(mask, lane_id() + 32)) {
    publish(word_at(call.windows[lane_id() + 32],
                    layout.row_flag_at(bank, call.rank, slots.high, part_index)),
            block.epoch, 0);
  }
}

__device__ __forceinline__ void count(uint64_t* total, int32_t n) {
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(n));
}

// The whole block; `counts` are zero.
__device__ void send_counts(const Args& args, const Block& block, const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const int bank = bank_of(block.epoch);
  const int num_tokens = args.dispatch.num_tokens;
  int32_t selections = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_tokens * call.layout.topk;
       i += kLowLatencyThreads) {
    const int32_t id = shared.ids[i];
    if (is_expert(id, call.num_experts)) {
      atomicAdd(shared.counts + id, 1);
      ++selections;
    } else if (id != -1) {
      const auto self = static_cast<uint8_t>(call.rank);
      raise_fault(
          args.signals, {FaultReason::kBadId, kOp, self, self, block.epoch},
          make_signal(static_cast<uint32_t>(i / call.layout.topk), static_cast<uint32_t>(id)));
    }
  }
  selections = __reduce_add_sync(kAllLanes, selections);
  if (lane_id() == 0) {
    count(&call.state->selections, selections);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < call.num_experts; e += kLowLatencyThreads) {
    const uint32_t home = shared.placement[e];
    const auto r = static_cast<int>(home_rank(home));
    if (!has_rank(block.dead, r)) {
      ptx::st_relaxed_sys(
          word_at(call.windows[r], call.layout.count_at(bank, home_index(home), call.rank)),
          make_signal(block.epoch, static_cast<uint32_t>(shared.counts[e])));
    }
  }
  for (int r = warp_id(); r < call.layout.num_ranks; r += kWarps) {
    int32_t n = 0;
    for (int t = lane_id(); t < num_tokens; t += 32) {
      n += has_rank(shared.tokens_ranks[t], r);
    }
    n = __reduce_add_sync(kAllLanes, n);
    if (lane_id() == 0 && !has_rank(block.dead, r)) {
      ptx::st_relaxed_sys(word_at(call.windows[r], call.layout.num_messages_at(bank, call.rank)),
                          make_signal(block.epoch, static_cast<uint32_t>(n)));
      count(&call.state->copies, n);
    }
  }
}

// One warp; bases of the rows of local expert l: those of lower sources come before.
__device__ bool find_bases(const Args& args, const Block& block, const Pointers& shared, int l) {
  const LowLatencyCall& call = args.dispatch.call;
  const int num_ranks = call.layout.num_ranks;
  const int bank = bank_of(block.epoch);
  int32_t total = 0;
  for (int first = 0; first < num_ranks; first += 32) {
    const int source = first + lane_id();
    int32_t count = 0;
    bool ok = true;
    if (source < num_ranks && !has_rank(block.dead, source)) {
      uint64_t seen = 0;
      ok = await_signal(args.signals, kOp, block.epoch, source,
                        word_at(call.windows[call.rank], call.layout.count_at(bank, l, source)),
                        &seen);
      count = static_cast<int32_t>(signal_value(seen));
    }
    if (!__all_sync(kAllLanes, ok)) {
      return false;
    }
    int32_t sum = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
      sum += lane_id() >= step ? before : 0;
    }
    if (source < num_ranks) {
      shared.bases[l * num_ranks + source] = total + sum - count;
    }
    total += __shfl_sync(kAllLanes, sum, 31);
  }
  if (blockIdx.x == 0 && lane_id() == 0) {
    args.dispatch.out_count[l] = total;
    args.dispatch.expert_rows[l] += total;
  }
  return true;
}

__device__ bool find_num_messages(const Args& args, const Block& block, const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const int bank = bank_of(block.epoch);
  bool ok = true;
  for (int source = lane_id(); source < call.layout.num_ranks; source += 32) {
    int32_t n = 0;
    if (!has_rank(block.dead, source)) {
      uint64_t seen = 0;
      ok = ok &&
           await_signal(args.signals, kOp, block.epoch, source,
                        word_at(call.windows[call.rank], call.layout.num_messages_at(bank, source)),
                        &seen);
      n = static_cast<int32_t>(signal_value(seen));
    }
    shared.num_messages[source] = n;
    if (blockIdx.x == 0) {
      call.num_messages[source] = n;
    }
  }
  return __all_sync(kAllLanes, ok);
}

// One warp copies `num` words to row after row; bit k of `here`: lane k's `row` is one of them.
template <typename Word>
__device__ void fan_out(const std::byte* from,
                        std::byte* to,
                        int64_t row_stride,
                        int64_t offset,
                        int num_bytes,
                        uint32_t here,
                        int64_t row) {
  constexpr int kAtOnce = 4;
  const int num = num_bytes / static_cast<int>(sizeof(Word));
  const auto* source = reinterpret_cast<const Word*>(from + offset);
  for (int first = lane_id(); first - lane_id() < num; first += 32 * kAtOnce) {
    Word words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i < num) {
        words[i] = load_word(source + first + 32 * i);
      }
    }
    for (uint32_t left = here; left != 0; left &= left - 1) {
      const int64_t r = __shfl_sync(kAllLanes, row, __ffs(static_cast<int>(left)) - 1);
      auto* target = reinterpret_cast<Word*>(to + r * row_stride + offset);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + 32 * i < num) {
          store_word(target + first + 32 * i, words[i]);
        }
      }
    }
  }
}

// One warp moves a part of a message to the rows of its experts.
template <typename Part>
__device__ bool receive_part(
    const Args& args, const Block& block, const Pointers& shared, int source, int slot, int part) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int bank = bank_of(block.epoch);
  const int topk = layout.topk;
  const int64_t max_rows = int64_t{layout.max_tokens} * layout.num_ranks;
  std::byte* window = call.windows[call.rank];
  const uint64_t* header = word_at(window, layout.header_at(bank, source, slot, 0));
  uint64_t word = 0;
  if (!await_lanes(args.signals, kOp, block.epoch, topk, source, header + lane_id(), &word)) {
    return false;
  }
  bool is_here = lane_id() < topk && signal_value(word) != kNotHere;
  int64_t row = 0;
  if (is_here) {
    const uint32_t l = placed_expert(signal_value(word));
    const int64_t index =
        shared.bases[l * static_cast<uint32_t>(layout.num_ranks) + static_cast<uint32_t>(source)] +
        static_cast<int64_t>(placed_index(signal_value(word)));
    row = l * max_rows + index;
    is_here = index < max_rows;  // else the caller chose one expert twice for a token
  }
  const uint32_t here = __ballot_sync(kAllLanes, is_here);
  if (part == 0) {
    uint64_t own = 0;
    if (!await_lanes(args.signals, kOp, block.epoch, 2, source, header + topk + lane_id(), &own)) {
      return false;
    }
    const auto tag = static_cast<int32_t>(__shfl_sync(kAllLanes, signal_value(own), 0));
    const auto token = static_cast<int32_t>(__shfl_sync(kAllLanes, signal_value(own), 1));
    if (is_here) {
      args.dispatch.out_tags[row] = tag;
    }
    int32_t* rows = call.message_rows + (int64_t{slot} * layout.num_ranks + source) * (topk + 1);
    if (lane_id() < topk) {
      rows[lane_id()] = is_here ? static_cast<int32_t>(row) : -1;
    }
    if (lane_id() == 0) {
      rows[topk] = token;
    }
  }
  uint64_t seen = 0;
  if (!await_lanes(args.signals, kOp, block.epoch, 1, source,
                   word_at(window, layout.row_flag_at(bank, source, slot, part)), &seen)) {
    return false;
  }
  const std::byte* message = window + layout.message_at(bank, source, slot);
  const int element_bytes = Part::kIsCast ? 1 : layout.element_bytes;
  const int begin = part * kPartElements;
  const int num = min(kPartElements, layout.hidden - begin);
  fan_out<typename UnitWord<Part::kUnit>::Type>(
      message, args.dispatch.out, int64_t{layout.hidden} * element_bytes,
      int64_t{begin} * element_bytes, num * element_bytes, here, row);
  if constexpr (Part::kIsCast) {
    fan_out<uint32_t>(message + layout.hidden,
                      reinterpret_cast<std::byte*>(args.dispatch.out_scale),
                      4 * (layout.hidden / kCastGroup), 4 * (begin / kCastGroup),
                      4 * (num / kCastGroup), here, row);
  }
  return true;
}

template <typename Part>
__device__ void send(const Args& args, const Block& block, const Pointers& shared, Part& part) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const int num_parts = dispatch.call.layout.num_parts;
  const int num_data = dispatch.num_tokens * num_parts;
  const int stride = static_cast<int>(gridDim.x) * kSendWarps;
  const int64_t row_bytes =
      int64_t{dispatch.call.layout.hidden} * dispatch.call.layout.element_bytes;
  bool is_loaded = true;  // the first
  for (int item = spread_warp(warp_id()); item < num_data; item += stride) {
    if (!is_loaded) {
      part.load(dispatch.x + item / num_parts * row_bytes, dispatch.call.layout.hidden,
                item % num_parts);
    }
    is_loaded = false;
    send_part(args, block, shared, item / num_parts, item % num_parts, part);
  }
}

template <typename Part>
__device__ void receive(const Args& args, Block& block, const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  if (warp_id() >= kSendWarps) {
    bool ok = true;
    for (int l = warp_id() - kSendWarps; ok && l < call.num_local; l += kReceiveWarps) {
      ok = find_bases(args, block, shared, l);
    }
    if (ok && warp_id() == kWarps - 1) {
      ok = find_num_messages(args, block, shared);
    }
    if (!ok) {
      block.has_failed = true;
    }
    ptx::mbarrier_arrive(&block.bases_done);
  }
  ptx::mbarrier_wait_parity(&block.bases_done, 0);
  if (block.has_failed) {
    return;
  }
  int32_t most = 0;
  for (int source = lane_id(); source < layout.num_ranks; source += 32) {
    most = max(most, shared.num_messages[source]);
  }
  most = __reduce_max_sync(kAllLanes, most);
  const int num_items = most * layout.num_ranks * layout.num_parts;
  for (int item = receive_unit(warp_id()); item < num_items; item += num_receive_units()) {
    const int part = item % layout.num_parts;
    const int message = item / layout.num_parts;
    const int source = (call.rank + message) % layout.num_ranks;
    const int slot = message / layout.num_ranks;
    if (slot < shared.num_messages[source] &&
        !receive_part<Part>(args, block, shared, source, slot, part)) {
      return;
    }
  }
}

// The whole block: what follows from the ids, the epoch, and that the mailboxes are free.
__device__ bool begin_send(const Args& args, Block& block, const Pointers& shared) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const LowLatencyCall& call = dispatch.call;
  const int topk = call.layout.topk;
  const int num_ids = dispatch.num_tokens * topk;
  for (int i = static_cast<int>(threadIdx.x); i < num_ids + 3; i += kLowLatencyThreads) {
    shared.ids[i] = i < num_ids ? __ldg(dispatch.ids + i) : -1;
  }
  for (int e = static_cast<int>(threadIdx.x); e < call.num_experts; e += kLowLatencyThreads) {
    shared.placement[e] = __ldg(call.placement + e);
    shared.counts[e] = 0;
  }
  if (threadIdx.x == 0) {
    block.epoch = *reinterpret_cast<volatile const uint32_t*>(&call.state->epoch) + 1;
    block.dead = call.state->dead;
    block.has_failed = is_aborted(args.signals);
    ptx::mbarrier_init(&block.bases_done, 32 * kReceiveWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (block.has_failed) {
    return false;
  }
  // Each block has read the epoch when it arrives here; the last one advances it.
  if (threadIdx.x == 0 && atomicInc(&call.state->arrived, gridDim.x - 1) == gridDim.x - 1) {
    call.state->epoch = block.epoch;
    call.state->place_epoch[call.place] = block.epoch;
  }
  for (int t = static_cast<int>(threadIdx.x); t < dispatch.num_tokens; t += kLowLatencyThreads) {
    uint64_t ranks = 0;
    for (int k = 0; k < topk; ++k) {
      const int32_t id = shared.ids[t * topk + k];
      if (is_expert(id, call.num_experts)) {
        ranks |= uint64_t{1} << home_rank(shared.placement[id]);
      }
    }
    shared.tokens_ranks[t] = ranks & ~block.dead;
  }
  if (warp_id() == kWarps - 1) {
    // What this bank's mailboxes held before has been unpacked.  pairs with tell_unpacked
    const int bank = bank_of(block.epoch);
    bool ok = true;
    for (int r = lane_id(); r < call.layout.num_ranks; r += 32) {
      uint64_t seen = 0;
      ok = ok && (has_rank(block.dead, r) ||
                  await_signal(args.signals, kOp, block.epoch - 2, r,
                               word_at(call.windows[call.rank], call.layout.unpacked_at(bank, r)),
                               &seen));
    }
    if (!ok) {
      block.has_failed = true;
    }
  }
  __syncthreads();
  return !block.has_failed;
}

template <typename Part>
__global__ void __launch_bounds__(kLowLatencyThreads, 1)
    dispatch_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  __shared__ Block block;
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const LowLatencyCall& call = dispatch.call;
  const Pointers shared = map_shared(dynamic_shared, call);

  if ((call.phases & kSendPhase) != 0) {
    Part part;
    const int first = spread_warp(warp_id());
    if (warp_id() < kSendWarps && first < dispatch.num_tokens * call.layout.num_parts) {
      part.load(dispatch.x + int64_t{first / call.layout.num_parts} * call.layout.hidden *
                                 call.layout.element_bytes,
                call.layout.hidden, first % call.layout.num_parts);
    }
    if (blockIdx.x == 0 && warp_id() == kWarps - 1) {
      // Told before anything is awaited.  The call before last of this bank: it was received, or
      // never will be.  That of the other bank: as far as it was received.
      const uint32_t epoch = *reinterpret_cast<volatile const uint32_t*>(&call.state->epoch) + 1;
      const int bank = bank_of(epoch);
      if (epoch > 2) {
        tell_unpacked(call, call.state->dead, bank, make_signal(epoch - 2, 0));
      }
      tell_unpacked(call, call.state->dead, 1 - bank, call.state->unpacked[1 - bank]);
    }
    if (!begin_send(args, block, shared)) {
      return;
    }
    if (blockIdx.x == gridDim.x - 1) {
      send_counts(args, block, shared);
    }
    if (warp_id() < kSendWarps) {
      send(args, block, shared, part);
    } else {
      for (int token = spread_warp(warp_id() - kSendWarps); token < dispatch.num_tokens;
           token += static_cast<int>(gridDim.x) * kReceiveWarps) {
        send_headers(args, block, shared, token);
      }
    }
  } else {
    if (threadIdx.x == 0) {
      block.epoch = call.state->place_epoch[call.place];
      block.dead = call.state->dead;
      block.has_failed = is_aborted(args.signals);
      ptx::mbarrier_init(&block.bases_done, 32 * kReceiveWarps);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (block.has_failed) {
      return;
    }
  }
  if ((call.phases & kReceivePhase) != 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      // True for the kernels after this one, which tell the peers.
      call.state->unpacked[bank_of(block.epoch)] = make_signal(block.epoch, 0);
    }
    receive<Part>(args, block, shared);
  }
}

using Kernel = void (*)(Args);

// The part that moves rows of `dtype` that begin at multiples of `alignment` bytes.
Kernel find_kernel(DType dtype, LowLatencyCast cast, int64_t alignment) {
  if (cast != LowLatencyCast::kNone) {
    switch (dtype) {
      case DType::kF32:
        return dispatch_kernel<CastPart<float>>;
      case DType::kF16:
        return dispatch_kernel<CastPart<__half>>;
      default:
        return dispatch_kernel<CastPart<uint16_t>>;
    }
  }
  if (dtype == DType::kF32) {
    return alignment % 16 == 0 ? dispatch_kernel<CopyPart<16, 4>> : dispatch_kernel<CopyPart<4, 4>>;
  }
  return alignment % 16 == 0  ? dispatch_kernel<CopyPart<16, 2>>
         : alignment % 4 == 0 ? dispatch_kernel<CopyPart<4, 2>>
                              : dispatch_kernel<CopyPart<2, 2>>;
}

}  // namespace

void load_low_latency_dispatch(int device, DType dtype, int64_t shared_bytes) {
  for (const LowLatencyCast cast : {LowLatencyCast::kNone, LowLatencyCast::kFp8}) {
    for (const int64_t alignment : {16, 4, 2}) {
      cuda::allow_shared_bytes(
          device, reinterpret_cast<const void*>(find_kernel(dtype, cast, alignment)), shared_bytes);
    }
  }
}

void launch_low_latency_dispatch(const LowLatencyDispatchCall& call,
                                 int num_blocks,
                                 int64_t shared_bytes,
                                 int device,
                                 void* stream) {
  const cuda::DeviceGuard guard(device);
  const Args args{call, make_signal_context(call.call)};
  const int64_t alignment = row_alignment(call.call.layout, call.x, call.out);
  const Kernel kernel = find_kernel(call.dtype, call.cast, alignment);
  kernel<<<static_cast<unsigned>(num_blocks), kLowLatencyThreads, static_cast<size_t>(shared_bytes),
           cuda::as_stream(stream)>>>(args);
  cuda::check_launch("low latency dispatch");
}

}  // namespace moebius::comm
