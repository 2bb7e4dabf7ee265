// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The half of a low-latency combine that sends rows, or their sums, back to the ranks of the
// tokens.
#pragma once

#include "comm/device/grid.cuh"
#include "comm/low_latency/cuda/sums.cuh"

namespace moebius::comm::low_latency_combine {

inline constexpr SignalOp kOp = SignalOp::kLowLatencyCombine;

struct Args {
  LowLatencyCombineCall combine;
  Divisor chunks;  // by the words of a row that a warp sums at a time
  __device__ const SignalContext& signals() const { return combine.call.signals; }
};

struct Block : CallBlock {
  int32_t num_messages[kMaxCudaRanks];  // of each source, where the call sends
};

// Begins a block.  Where the call sends, a warp tells first which messages of both banks have been
// unpacked.  All threads call it; returns false when the kernel must end.  A dispatch that was
// combined before is refused here, too, since a graph that was captured with one combine may be
// replayed.
__device__ __forceinline__ bool begin_combine(const Args& args, Block& block) {
  const LowLatencyCall& call = args.combine.call;
  if (is_settled(call)) {
    return false;
  }
  if (threadIdx.x == 0) {
    block.begin(call, call.state->place_epoch[call.place]);
  }
  const auto source = static_cast<int>(threadIdx.x);
  if ((call.phases & kSendPhase) != 0 && source < call.layout.num_ranks) {
    block.num_messages[source] = __ldg(call.num_messages + source);
  }
  if (warp_id() == kWarps - 1) {
    // These are loaded before the abort words, and not after them.
    const uint32_t epoch = call.state->place_epoch[call.place];
    const uint32_t combined = call.state->combined[call.place];
    block.note_abort(call);
    if ((call.phases & kSendPhase) != 0 && combined == epoch && lane_id() == 0) {
      tell_fault(call.signals, FaultReason::kCombinedTwice, kOp, call.rank(), epoch, 0);
      block.has_failed = true;
    }
  }
  __syncthreads();
  if (block.has_failed) {
    return false;
  }
  if ((call.phases & kSendPhase) != 0 && warp_id() == kWarps - 1) {
    if (blockIdx.x == 0) {
      tell_unpacked(call, block.dead, 0, call.state->unpacked[0]);
      tell_unpacked(call, block.dead, 1, call.state->unpacked[1]);
    }
    // A block that arrives here has read `combined`; the last block advances it.
    if (lane_id() == 0 && atomicInc(&call.state->combining, gridDim.x - 1) == gridDim.x - 1) {
      call.state->combined[call.place] = block.epoch;
    }
  }
  return true;
}

// What a warp sends at a time: a unit of some parts of the rows of a message.
struct SendItem {
  int item;
  int32_t row = -1;   // of the selection `lane`
  uint32_t all = 0;   // bit k: selection k has a row here
  uint32_t left = 0;  // those of them that are still to be sent
  int32_t token = 0;
  int source = 0;
  int unit = 0;
};
// The way of a warp through the items that it sends.  Messages are taken in order of their slots,
// and so about in order of their tokens: what comes first is summed while the rest is on its way.
// All lanes step together.
struct SendCursor : SendItem {
  const Args& args;
  const Block& block;
  int unit_parts;
  int num_units;  // units of a row
  int num_items;
  int stride;

  // most_parts: of a unit; what does not go through a stage may send whole rows.
  __device__ SendCursor(const Args& a,
                        const Block& b,
                        int num_senders,
                        int most_parts,
                        int first_item = spread_warp(warp_id()))
      : args(a), block(b) {
    const LowLatencyCall& call = args.combine.call;
    const int num_ranks = call.layout.num_ranks;
    int32_t most = 0;
    int32_t total = 0;
    for (int source_of_lane = lane_id(); source_of_lane < num_ranks; source_of_lane += 32) {
      const int32_t num = block.num_messages[source_of_lane];
      most = max(most, num);
      total += num;
    }
    most = __reduce_max_sync(kAllLanes, most);
    total = __reduce_add_sync(kAllLanes, total);
    stride = static_cast<int>(gridDim.x) * num_senders;
    unit_parts = args.combine.unit_parts != 0
                     ? args.combine.unit_parts
                     : choose_unit_parts(total, call.layout.num_parts, stride, most_parts);
    num_units = (call.layout.num_parts + unit_parts - 1) / unit_parts;
    num_items = most * num_ranks * num_units;
    item = first_item;
    find_message();
  }

  __device__ void find_message() {
    const LowLatencyCall& call = args.combine.call;
    const int num_ranks = call.layout.num_ranks;
    const int topk = call.layout.topk;
    for (; item < num_items; item += stride) {
      const int message = item / num_units;
      const int slot = call.ranks.quotient(message);
      source = call.rank() + message - slot * num_ranks;
      source -= source >= num_ranks ? num_ranks : 0;
      if (slot >= block.num_messages[source] || block.dead.has(source)) {
        continue;
      }
      const int32_t* rows = call.message_rows + (int64_t{slot} * num_ranks + source) * (topk + 1);
      row = lane_id() < topk ? rows[lane_id()] : -1;
      token = rows[topk];
      unit = item % num_units;
      all = left = __ballot_sync(kAllLanes, row >= 0);
      if (left != 0) {
        return;
      }
    }
  }
  __device__ bool is_valid() const { return item < num_items; }
  __device__ void next() {
    left &= left - 1;
    if (left == 0) {
      item += stride;
      find_message();
    }
  }

  __device__ void next_message() {
    item += stride;
    left = 0;
    find_message();
  }

  __device__ bool is_last_of_item() const { return (left & (left - 1)) == 0; }
  __device__ int k() const { return __ffs(static_cast<int>(left)) - 1; }
  __device__ int64_t selection() const {
    return int64_t{token} * args.combine.call.layout.topk + k();
  }
  __device__ int first_part() const { return unit * unit_parts; }
  __device__ int num_parts() const {
    return min(unit_parts, args.combine.call.layout.num_parts - first_part());
  }
  __device__ int64_t first_byte() const {
    return int64_t{first_part()} * kPartElements * args.combine.call.layout.element_bytes;
  }
  __device__ uint32_t num_bytes() const {
    const CudaLowLatencyLayout& layout = args.combine.call.layout;
    return static_cast<uint32_t>(
        min(num_parts() * kPartElements, layout.hidden - first_part() * kPartElements) *
        layout.element_bytes);
  }
  // These two tell where the unit of selection k is, and where it goes.  All lanes call them.
  __device__ const std::byte* from(int k) const {
    const CudaLowLatencyLayout& layout = args.combine.call.layout;
    const int64_t at = __shfl_sync(kAllLanes, row, k);
    return args.combine.x + at * layout.hidden * layout.element_bytes + first_byte();
  }
  __device__ std::byte* to(int k) const {
    const LowLatencyCall& call = args.combine.call;
    return call.window(source) +
           call.layout.returned_at(bank_of(block.epoch), int64_t{token} * call.layout.topk + k) +
           first_byte();
  }
  // All lanes call these after what they stored.  They publish one selection, or all of the item.
  __device__ void publish_parts() const { publish_parts(1u << k()); }
  __device__ void publish_item() const { publish_parts(all); }

 private:
  // Why one lane: a fence takes some microseconds while an SM stores rows, so a warp must not make
  // two of them, as it does where lanes have diverged.
  __device__ void publish_parts(uint32_t selections) const {
    const LowLatencyCall& call = args.combine.call;
    __syncwarp();
    if (lane_id() != 0) {
      return;
    }
    uint64_t* flags =
        word_at(call.window(source),
                call.layout.return_flag_at(bank_of(block.epoch), int64_t{token} * call.layout.topk,
                                           first_part()));
    const uint64_t signal = make_signal(block.epoch, static_cast<uint32_t>(args.combine.coding));
    ptx::fence_acq_rel_sys();  // with the stores below, it publishes what all lanes have stored
#pragma unroll 1
    for (uint32_t rest = selections; rest != 0; rest &= rest - 1) {
      uint64_t* of_row = flags + (__ffs(static_cast<int>(rest)) - 1) * call.layout.num_parts;
#pragma unroll 1
      for (int part = 0; part < num_parts(); ++part) {
        ptx::st_relaxed_sys(of_row + part, signal);
      }
    }
  }
};

// Half of the warps of each block send this rank's weights to the other ranks of the experts.
__device__ inline void send_weights(const Args& args, const Block& block) {
  const LowLatencyCombineCall& combine = args.combine;
  const LowLatencyCall& call = combine.call;
  const int bank = bank_of(block.epoch);
  constexpr int kThreads = 32 * kReceiveWarps;
  const int thread = static_cast<int>(threadIdx.x) - 32 * kSendWarps;
  const int num = combine.num_tokens * call.layout.topk;
  for (int i = spread_warp(thread); i < num; i += static_cast<int>(gridDim.x) * kThreads) {
    const int32_t id = combine.ids[i];
    if (static_cast<uint32_t>(id) < static_cast<uint32_t>(call.num_experts)) {
      const auto r = static_cast<int>(pair_first(__ldg(call.placement + id)));
      if (r != call.rank() && !block.dead.has(r)) {
        ptx::st_relaxed_sys(word_at(call.window(r), call.layout.weight_at(bank, call.rank(), i)),
                            make_signal(block.epoch, __float_as_uint(__ldg(combine.weights + i))));
      }
    }
  }
}

// The lane's weight of a message, as the token's rank sends it.
__device__ __forceinline__ const uint64_t* weight_word(const Args& args,
                                                       const Block& block,
                                                       int source,
                                                       int token) {
  const LowLatencyCall& call = args.combine.call;
  const int64_t selection = int64_t{token} * call.layout.topk + lane_id();
  return word_at(call.window(call.rank()),
                 call.layout.weight_at(bank_of(block.epoch), source, selection));
}

// One warp looks for the weights of a message's rows for a while.  Returns whether all are here, or
// were awaited before.  Why not for as long as it takes: as for find_rows().
__device__ __forceinline__ bool find_weights(const SendCursor& at, bool has_waited, float& weight) {
  const LowLatencyCombineCall& combine = at.args.combine;
  if (at.source == combine.call.rank()) {  // its own are not sent
    const int64_t selection = int64_t{at.token} * combine.call.layout.topk + lane_id();
    weight = at.row >= 0 ? __ldg(combine.weights + selection) : 0.0f;
    return true;
  }
  const uint64_t* word = weight_word(at.args, at.block, at.source, at.token);
  bool waits = at.row >= 0;
  uint64_t seen = 0;
#pragma unroll 1
  for (int polls = 0; polls < kInlinePolls && __any_sync(kAllLanes, waits) != 0; ++polls) {
    if (waits) {
      seen = ptx::ld_acquire_sys(word);  // pairs with send_weights
      waits = !has_waited && !has_just_reached(signal_epoch(seen), at.block.epoch);
    }
  }
  weight = __uint_as_float(signal_value(seen));
  return __all_sync(kAllLanes, !waits) != 0;
}

// One warp awaits the weights of a message's rows.  Returns false when the kernel must end.
__device__ __noinline__ inline bool await_weights(
    const Args& args, const Block& block, int source, int token, bool has_row) {
  Awaited got = Awaited::kHere;
  if (has_row) {
    uint64_t seen = 0;
    got = await_peer(args.signals(), kOp, block.epoch, source,
                     weight_word(args, block, source, token), &seen);
  }
  return agree(got) != Awaited::kFailed;
}

// One warp weights and sums the rows of each message.  Returns false when the kernel must end.  No
// register holds anything but the item over the call of a function.  All warps of a block do it
// before any receives, since the sums of all ranks wait for what is sent.
template <typename Type, typename Word>
__device__ bool send_sums(const Args& args, const Block& block) {
  const CudaLowLatencyLayout& layout = args.combine.call.layout;
  const int64_t row_bytes = int64_t{layout.hidden} * layout.element_bytes;
  bool has_waited = false;
  for (int item = spread_warp(warp_id());;) {
    SendCursor at(args, block, kWarps, layout.num_parts, item);
    float weight = 0.0f;
    for (; at.is_valid() && find_weights(at, has_waited, weight); at.next_message()) {
      has_waited = false;
      auto* to = reinterpret_cast<Word*>(at.to(at.k()));
      const int num = static_cast<int>(at.num_bytes() / sizeof(Word));
      for (int first = 0; first < num; first += 32) {
        const int word = first + lane_id();
        const auto weight_at = [&](int k) { return __shfl_sync(kAllLanes, weight, k); };
        const auto row_at = [&](int k) {
          const int64_t row = __shfl_sync(kAllLanes, at.row, k);
          return reinterpret_cast<const Word*>(args.combine.x + row * row_bytes + at.first_byte()) +
                 word;
        };
        const Word sum = weighted_sum<Type, Word>(at.left, word < num, weight_at, row_at);
        if (word < num) {
          store_word(to + word, sum);
        }
      }
      __syncwarp();
      at.publish_parts();
    }
    if (!at.is_valid()) {
      return true;
    }
    item = at.item;
    if (!await_weights(args, block, at.source, at.token, at.row >= 0)) {
      return false;
    }
    has_waited = true;
  }
}

// One warp sends rows through registers.
template <typename Word>
__device__ void send_plain(SendCursor at) {
  constexpr int kAtOnce = 4;
  for (; at.is_valid(); at.next()) {
    const auto* from = reinterpret_cast<const Word*>(at.from(at.k()));
    auto* to = reinterpret_cast<Word*>(at.to(at.k()));
    const int num = static_cast<int>(at.num_bytes() / sizeof(Word));
    for (int first = lane_id(); first < num; first += 32 * kAtOnce) {
      Word words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + 32 * i < num) {
          words[i] = load_word(from + first + 32 * i);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + 32 * i < num) {
          store_word(to + first + 32 * i, words[i]);
        }
      }
    }
    if (at.is_last_of_item()) {
      __syncwarp();
      at.publish_item();
    }
  }
}

// One warp sends rows through its stage, whose slots hold a unit each.  So the loads of several
// rows of a message are under way at the same time.  The next message is loaded as soon as the
// stage has been read, while the stores of this one are under way.  It is found before that, while
// this one is loaded.
__device__ inline void send_in_bulk(SendCursor at, std::byte* stage, uint64_t* barriers) {
  const LowLatencyCombineCall& combine = at.args.combine;
  const bool is_first_lane = lane_id() == 0;
  const int unit_bytes = at.unit_parts * kPartElements * combine.call.layout.element_bytes;
  const int num_slots = min(combine.stage_parts / at.unit_parts, kCombineSlots);
  int slot = 0;  // of the unit that is stored next
  uint32_t parity = 0;
  const auto load = [&](const SendCursor& unit, int k, int to) {
    const std::byte* from = unit.from(k);
    if (is_first_lane) {
      ptx::mbarrier_arrive_expect_tx(barriers + to, unit.num_bytes());
      ptx::bulk_load(stage + to * unit_bytes, from, unit.num_bytes(), barriers + to);
    }
  };
  // Loads the first rows of an item, and returns those that are left.
  const auto begin = [&](const SendCursor& unit) {
    uint32_t left = unit.all;
    for (int i = 0; i < num_slots && left != 0; ++i, left &= left - 1) {
      load(unit, __ffs(static_cast<int>(left)) - 1,
           slot + i < num_slots ? slot + i : slot + i - num_slots);
    }
    return left;
  };
  if (!at.is_valid()) {
    return;
  }
  init_stage_barriers(num_slots, lane_id(), [&](int i) { return barriers + i; });
  for (uint32_t to_load = begin(at);;) {
    SendCursor next = at;
    next.next_message();
    for (uint32_t left = at.all; left != 0; left &= left - 1) {
      if (is_first_lane) {
        ptx::mbarrier_wait_parity(barriers + slot, parity);
        ptx::bulk_store(at.to(__ffs(static_cast<int>(left)) - 1), stage + slot * unit_bytes,
                        at.num_bytes());
        ptx::bulk_commit();
      }
      if (to_load != 0) {
        if (is_first_lane) {
          ptx::bulk_wait_read<0>();
        }
        load(at, __ffs(static_cast<int>(to_load)) - 1, slot);
        to_load &= to_load - 1;
      }
      slot = slot + 1 < num_slots ? slot + 1 : 0;
      parity ^= slot == 0 ? 1 : 0;
    }
    if (next.is_valid()) {
      if (is_first_lane) {
        ptx::bulk_wait_read<0>();
      }
      to_load = begin(next);
    }
    if (is_first_lane) {
      ptx::bulk_wait<0>();
    }
    __syncwarp();  // all lanes publish what the first lane has stored
    at.publish_item();
    if (!next.is_valid()) {
      return;
    }
    static_cast<SendItem&>(at) = next;
  }
}

}  // namespace moebius::comm::low_latency_combine
