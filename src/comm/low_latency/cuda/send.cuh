// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The half of a low-latency dispatch that sends parts of rows, headers and counts.
#pragma once

#include "comm/low_latency/cuda/dispatch.cuh"

namespace moebius::comm::low_latency_dispatch {

__device__ __forceinline__ bool is_expert(int32_t id, int num_experts) {
  return static_cast<uint32_t>(id) < static_cast<uint32_t>(num_experts);
}

// The whole block prepares to send: it reads the ids and the epoch, and waits until the mailboxes
// are free.  Returns false when the kernel must end.  Senders and receivers take ways of their own
// through it, so that no function is called while a sender's registers hold a part.
template <int kWords, bool kIsSender>
__device__ __forceinline__ bool begin_send(const Args& args, Block& block, const Pointers& shared) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const LowLatencyCall& call = dispatch.call;
  const int topk = call.layout.topk;
  const int num_ids = dispatch.num_tokens * topk;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num_ids + 3; i += kLowLatencyThreads) {
    shared.ids()[i] = i < num_ids ? dispatch.ids[i] : -1;
  }
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < call.num_experts; e += kLowLatencyThreads) {
    shared.placement()[e] = __ldg(call.placement + e);
    shared.counts()[e] = 0;
  }
  if (kIsSender && threadIdx.x == 0) {
    block.begin(args, *reinterpret_cast<volatile const uint32_t*>(&call.state->epoch) + 1);
  }
  if (!kIsSender && warp_id() == kWarps - 1) {
    block.note_abort(call);
  }
  block_barrier();
  if (block.has_failed) {
    return false;
  }
  // A block that arrives here has read the epoch; the last block advances it.
  if (kIsSender && threadIdx.x == 0 &&
      atomicInc(&call.state->arrived, gridDim.x - 1) == gridDim.x - 1) {
    call.state->epoch = block.epoch;
    call.state->place_epoch[call.place] = block.epoch;
  }
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x); t < dispatch.num_tokens; t += kLowLatencyThreads) {
    RankMaskOf<kWords> ranks{};
#pragma unroll 1
    for (int k = 0; k < topk; ++k) {
      const int32_t id = shared.ids()[t * topk + k];
      if (is_expert(id, call.num_experts)) {
        ranks.add(static_cast<int>(pair_first(shared.placement()[id])));
      }
    }
    ranks.remove(block.dead);
    shared.ranks_of<kWords>(t) = ranks;
  }
  if (!kIsSender && warp_id() == kWarps - 1) {
    // Wait until what this bank's mailboxes held before has been unpacked.  pairs with
    // tell_unpacked
    bool ok = true;
#pragma unroll 1
    for (int r = lane_id(); r < call.layout.num_ranks; r += 32) {
      uint64_t seen = 0;
      ok = ok && (block.dead.has(r) ||
                  await_peer(args.signals(), kOp, block.epoch - 2, r,
                             word_at(call.window(call.rank()),
                                     call.layout.unpacked_at(bank_of(block.epoch), r)),
                             &seen) != Awaited::kFailed);
    }
    ok = __all_sync(kAllLanes, ok) != 0;
    if (lane_id() == 0) {
      block.can_send = ok;
    }
  }
  block_barrier();
  return block.can_send;
}

// Calls visit(rank) for the ranks of the mask, in order.
template <int kWords, typename Visit>
__device__ __forceinline__ void for_each_rank(const RankMaskOf<kWords>& mask, const Visit& visit) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    for (uint64_t left = mask.words[w]; left != 0; left &= left - 1) {
      visit(64 * w + __ffsll(static_cast<long long>(left)) - 1);
    }
  }
}

// Lane l learns how many tokens before `token` go to the ranks l, l + 32, ..., if these are in
// `mask`. That is the slot of the message in this rank's mailbox there.
template <int kWords>
struct Slots {
  using Mask = RankMaskOf<kWords>;
  int32_t of_group[Mask::kGroups] = {};

  __device__ static Slots of(const Pointers& shared, int token, const Mask& mask) {
    Slots slots;
#pragma unroll 1
    for (int first = 0; first < token; first += 32) {
      const int t = first + lane_id();
      const Mask ranks = t < token ? shared.ranks_of<kWords>(t) : Mask{};
      for_each_rank(mask, [&](int r) {
        const int n = __popc(__ballot_sync(kAllLanes, ranks.has(r)));
#pragma unroll
        for (int group = 0; group < Mask::kGroups; ++group) {
          slots.of_group[group] += r == lane_id() + 32 * group ? n : 0;
        }
      });
    }
    return slots;
  }
  __device__ int32_t at(int rank) const {
    int32_t mine = of_group[0];
#pragma unroll
    for (int group = 1; group < Mask::kGroups; ++group) {
      mine = rank < 32 * group ? mine : of_group[group];
    }
    return __shfl_sync(kAllLanes, mine, rank % 32);
  }
};

// One warp sends the headers of a token's messages.
template <int kWords>
__device__ inline void send_headers(const Args& args,
                                    const Block& block,
                                    const Pointers& shared,
                                    int token) {
  const LowLatencyCall& call = args.dispatch.call;
  const int topk = call.layout.topk;
  const RankMaskOf<kWords> mask = shared.ranks_of<kWords>(token);
  if (mask.is_empty()) {
    return;
  }
  // Lane k + topk * j counts a share of the earlier selections of the expert of selection k.
  const int shares = 32 / topk;
  const int k = lane_id() % topk;
  const int share = lane_id() / topk;
  const int end = token * topk + k;
  const int32_t id = shared.ids()[end];
  int32_t counted = 0;
  if (share < shares) {
    // Ids are read four at a time; the last four may reach past the end.
#pragma unroll 1
    for (int at = 4 * share; at < end; at += 4 * shares) {
      const int4 four = *reinterpret_cast<const int4*>(shared.ids() + at);
      counted += four.x == id;
      counted += four.y == id && at + 1 < end;
      counted += four.z == id && at + 2 < end;
      counted += four.w == id && at + 3 < end;
    }
  }
  int32_t index = 0;
#pragma unroll 1
  for (int j = 0; j < shares; ++j) {
    index += __shfl_sync(kAllLanes, counted, k + topk * j);
  }
  const bool is_valid = is_expert(id, call.num_experts);
  const uint32_t home = is_valid ? shared.placement()[id] : 0;
  const int32_t tag = args.dispatch.tags != nullptr ? args.dispatch.tags[token] : -1;

  const auto slots = Slots<kWords>::of(shared, token, mask);
  const int bank = bank_of(block.epoch);
  for_each_rank(mask, [&](int r) {
    uint64_t* header =
        word_at(call.window(r), call.layout.header_at(bank, call.rank(), slots.at(r), 0));
    if (lane_id() < topk) {
      const bool is_there = is_valid && pair_first(home) == static_cast<uint32_t>(r);
      const uint32_t placed =
          is_there ? make_pair(pair_second(home), static_cast<uint32_t>(index)) : kNotHere;
      ptx::st_relaxed_sys(header + lane_id(), make_signal(block.epoch, placed));
    }
    if (lane_id() == 0) {
      ptx::st_relaxed_sys(header + topk, make_signal(block.epoch, static_cast<uint32_t>(tag)));
      ptx::st_relaxed_sys(header + topk + 1,
                          make_signal(block.epoch, static_cast<uint32_t>(token)));
    }
  });
}

// One warp stores a part, which has been loaded, to all ranks of the token.
template <int kWords, typename Part>
__device__ __forceinline__ void store_part(const Args& args,
                                           const Block& block,
                                           const RankMaskOf<kWords>& mask,
                                           const Slots<kWords>& slots,
                                           int token,
                                           int part_index,
                                           Part& part) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int bank = bank_of(block.epoch);
  part.prepare(args.dispatch.cast == LowLatencyCast::kFp8Ue8m0);
  const float own_scale = part.own_scale();
  // The first peer differs from rank to rank and from token to token.
  const int first =
      call.rank() + token - call.ranks.quotient(call.rank() + token) * layout.num_ranks;
#pragma unroll 1
  for (int i = 0; i < layout.num_ranks; ++i) {
    const int r = first + i < layout.num_ranks ? first + i : first + i - layout.num_ranks;
    if (mask.has(r)) {
      std::byte* message = call.window(r) + layout.message_at(bank, call.rank(), slots.at(r));
      part.store(message, layout.hidden, part_index, own_scale);
    }
  }
  if (part_index == 0 && args.dispatch.scale_bytes > 0) {
    const int bytes = args.dispatch.scale_bytes;
    for_each_rank(mask, [&](int r) {
      std::byte* message = call.window(r) + layout.message_at(bank, call.rank(), slots.at(r));
      copy_plain(message + args.dispatch.scale_at, args.dispatch.x_scale + int64_t{token} * bytes,
                 bytes, lane_id());
    });
  }
}

// One warp publishes a part that it has stored.
template <int kWords>
__device__ __forceinline__ void publish_part(const Args& args,
                                             const Block& block,
                                             const RankMaskOf<kWords>& mask,
                                             const Slots<kWords>& slots,
                                             int part_index) {
  const LowLatencyCall& call = args.dispatch.call;
  __syncwarp();
#pragma unroll
  for (int group = 0; group < RankMaskOf<kWords>::kGroups; ++group) {
    if (mask.has(group, lane_id())) {
      publish(word_at(call.window(lane_id() + 32 * group),
                      call.layout.row_flag_at(bank_of(block.epoch), call.rank(),
                                              slots.of_group[group], part_index)),
              block.epoch, 0);
    }
  }
}

__device__ __forceinline__ void count(uint64_t* total, int32_t n) {
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(n));
}

// The whole block counts and sends.
// REQUIRES: shared.counts() are zero.
template <int kWords>
__device__ inline void send_counts(const Args& args, const Block& block, const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const int bank = bank_of(block.epoch);
  const int num_tokens = args.dispatch.num_tokens;
  constexpr int kThreads = 32 * kReceiveWarps;
  const int thread = static_cast<int>(threadIdx.x) - 32 * kSendWarps;
  int32_t selections = 0;
#pragma unroll 1
  for (int i = thread; i < num_tokens * call.layout.topk; i += kThreads) {
    const int32_t id = shared.ids()[i];
    if (is_expert(id, call.num_experts)) {
      atomicAdd(shared.counts() + id, 1);
      ++selections;
    } else if (id != -1) {
      tell_fault(
          args.signals(), FaultReason::kBadId, kOp, call.rank(), block.epoch,
          make_signal(static_cast<uint32_t>(i / call.layout.topk), static_cast<uint32_t>(id)));
    }
  }
  selections = __reduce_add_sync(kAllLanes, selections);
  if (lane_id() == 0) {
    count(&call.state->selections, selections);
  }
  ptx::barrier_sync<kThreads>(kReceiversBarrier);
#pragma unroll 1
  for (int e = thread; e < call.num_experts; e += kThreads) {
    const uint32_t home = shared.placement()[e];
    const auto r = static_cast<int>(pair_first(home));
    if (shared.counts()[e] > args.dispatch.max_tokens) {
      // Receivers leave out what they have no room for.
      tell_fault(args.signals(), FaultReason::kNoRoom, kOp, call.rank(), block.epoch,
                 make_signal(static_cast<uint32_t>(e),
                             make_pair(static_cast<uint32_t>(shared.counts()[e]),
                                       static_cast<uint32_t>(args.dispatch.max_tokens))));
    }
    if (!block.dead.has(r)) {
      ptx::st_relaxed_sys(
          word_at(call.window(r), call.layout.count_at(bank, pair_second(home), call.rank())),
          make_signal(block.epoch, static_cast<uint32_t>(shared.counts()[e])));
    }
  }
#pragma unroll 1
  for (int r = warp_id() - kSendWarps; r < call.layout.num_ranks; r += kReceiveWarps) {
    int32_t n = 0;
#pragma unroll 1
    for (int t = lane_id(); t < num_tokens; t += 32) {
      n += shared.ranks_of<kWords>(t).has(r);
    }
    n = __reduce_add_sync(kAllLanes, n);
    if (lane_id() == 0 && !block.dead.has(r)) {
      ptx::st_relaxed_sys(
          word_at(call.window(r), call.layout.num_messages_at(bank, call.rank())),
          make_signal(block.epoch, make_pair(args.dispatch.kind_tag, static_cast<uint32_t>(n))));
      const LowLatencyKind& kind = args.dispatch.kind;
      ptx::st_relaxed_sys(word_at(call.window(r), call.layout.kind_at(bank, call.rank(), 0)),
                          make_signal(block.epoch, kind.row_bytes));
      ptx::st_relaxed_sys(word_at(call.window(r), call.layout.kind_at(bank, call.rank(), 1)),
                          make_signal(block.epoch, make_pair(kind.room, kind.scale_bytes)));
      count(&call.state->copies, n);
    }
  }
}

// The senders of a block send parts of rows; the caller has loaded the first of each.  The next
// part is loaded while the stores of this one are under way.
template <int kWords, typename Part>
__device__ void send(const Args& args, const Block& block, const Pointers& shared, Part& part) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const int num_parts = dispatch.call.layout.num_parts;
  const int num_data = dispatch.num_tokens * num_parts;
  const int stride = static_cast<int>(gridDim.x) * kSendWarps;
  const int64_t row_bytes =
      int64_t{dispatch.call.layout.hidden} * dispatch.call.layout.element_bytes;
#pragma unroll 1
  for (int item = spread_warp(warp_id()); item < num_data;) {
    const int token = dispatch.call.parts.quotient(item);
    const int part_index = item - token * num_parts;
    const RankMaskOf<kWords> mask = shared.ranks_of<kWords>(token);
    const auto slots = Slots<kWords>::of(shared, token, mask);
    store_part<kWords>(args, block, mask, slots, token, part_index, part);
    item += stride;
    if (item < num_data) {
      const int next = dispatch.call.parts.quotient(item);
      part.load(dispatch.x + next * row_bytes, dispatch.call.layout.hidden,
                item - next * num_parts);
    }
    publish_part<kWords>(args, block, mask, slots, part_index);
  }
}

}  // namespace moebius::comm::low_latency_dispatch
