// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The half of a low-latency dispatch that receives: it moves messages to the rows of their experts.
#pragma once

#include "comm/low_latency/cuda/dispatch.cuh"

namespace moebius::comm::low_latency_dispatch {

// The least power of two that is not below the number of ranks, and at most a warp.
__device__ __forceinline__ int lanes_per_expert(int num_ranks) {
  return num_ranks > 16 ? 32 : num_ranks == 1 ? 1 : 1 << (32 - __clz(num_ranks - 1));
}

// A warp finds where the rows of each source begin in local experts; those of lower sources come
// first.  Its lanes form groups of `width`, a power of two, each of which takes an expert from
// `first_local` on.  Returns false when the kernel must end.
__device__ inline bool find_bases(
    const Args& args, const Block& block, const Pointers& shared, int first_local, int width) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const LowLatencyCall& call = dispatch.call;
  const int num_ranks = call.layout.num_ranks;
  const int l = first_local + lane_id() / width;
  const int place = lane_id() % width;
  int32_t total = 0;
#pragma unroll 1
  for (int first = 0; first < num_ranks; first += width) {
    const int source = first + place;
    const bool is_valid = l < call.num_local && source < num_ranks;
    int32_t count = 0;
    Awaited got = Awaited::kHere;
    if (is_valid && !block.dead.has(source)) {
      uint64_t seen = 0;
      got = await_peer(args.signals(), kOp, block.epoch, source,
                       word_at(block.own_bank, call.layout.count_at(0, l, source)), &seen);
      count = got == Awaited::kHere ? static_cast<int32_t>(signal_value(seen)) : 0;
    }
    if (!__all_sync(kAllLanes, got != Awaited::kFailed)) {
      return false;
    }
    int32_t sum = count;
#pragma unroll 1
    for (int step = 1; step < width; step *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step), width);
      sum += place >= step ? before : 0;
    }
    if (is_valid) {
      shared.bases()[l * num_ranks + source] = total + sum - count;
      if (blockIdx.x == 0) {
        dispatch.out_ranges[l * num_ranks + source] =
            static_cast<int64_t>(total + sum - count) << 32 | count;
      }
    }
    total += __shfl_sync(kAllLanes, sum, width - 1, width);
  }
  if (blockIdx.x == 0 && place == 0 && l < call.num_local) {
    // Only a fault kNoRoom makes it more.
    total = min(total, static_cast<int32_t>(dispatch.max_rows()));
    const bool is_again = (call.phases & kSettlePhase) != 0;
    const int32_t more = total - (is_again ? dispatch.out_count[l] : 0);
    dispatch.out_count[l] = total;
    dispatch.expert_rows[l] += more;
    if (dispatch.received != nullptr) {
      dispatch.received[l] += more;
    }
  }
  return true;
}

// One thread tells how a source's call differs from that of this rank.  The source stores these
// words beside its tag, and they may come after it.  It is rare, as tell_fault() is.
__device__ __noinline__ inline void tell_other_kind(const Args& args, int source, uint32_t epoch) {
  const LowLatencyCall& call = args.dispatch.call;
  const auto await_word = [&](int word) {
    const uint64_t* at =
        word_at(call.window(call.rank()), call.layout.kind_at(bank_of(epoch), source, word));
    const uint64_t start = ptx::globaltimer();
    uint64_t seen = 0;
    do {
      seen = ptx::ld_relaxed_sys(at);
    } while (!has_just_reached(signal_epoch(seen), epoch) &&
             ptx::globaltimer() - start < call.signals.timeout_ns);
    return signal_value(seen);
  };
  const LowLatencyKind& own = args.dispatch.kind;
  const uint32_t row_bytes = await_word(0);
  const uint32_t room_and_scales = await_word(1);
  const auto tell = [&](FaultReason reason, uint32_t theirs, uint32_t ours) {
    tell_fault(args.signals(), reason, kOp, source, epoch, make_signal(theirs, ours));
  };
  if (pair_first(room_and_scales) != own.room) {
    tell(FaultReason::kRoomMismatch, pair_first(room_and_scales), own.room);
  } else if (row_bytes != own.row_bytes) {
    tell(FaultReason::kMismatch, row_bytes, own.row_bytes);
  } else {
    tell(FaultReason::kScalesMismatch, pair_second(room_and_scales), own.scale_bytes);
  }
}

__device__ inline bool find_num_messages(const Args& args,
                                         const Block& block,
                                         const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  bool ok = true;
  const auto word_of = [&](int source) {
    return word_at(block.own_bank, call.layout.num_messages_at(0, source));
  };
  if (blockIdx.x == 0 && args.dispatch.wait_us != nullptr) {
#pragma unroll 1
    for (int first = 0; first < call.layout.num_ranks; first += 32) {
      const int source = first + lane_id();
      const bool awaits = source < call.layout.num_ranks && !block.dead.has(source);
      const uint64_t ns = time_until_here(args.signals(), block.epoch, awaits,
                                          awaits ? word_of(source) : nullptr, block.begin_ns);
      if (awaits) {
        args.dispatch.wait_us[source] += static_cast<int64_t>(ns / 1000);
      }
    }
  }
#pragma unroll 1
  for (int source = lane_id(); source < call.layout.num_ranks; source += 32) {
    int32_t n = 0;
    if (!block.dead.has(source)) {
      uint64_t seen = 0;
      const Awaited got =
          ok ? await_peer(args.signals(), kOp, block.epoch, source, word_of(source), &seen)
             : Awaited::kFailed;
      const bool is_here = got == Awaited::kHere;
      ok = got != Awaited::kFailed;
      n = is_here ? static_cast<int32_t>(pair_second(signal_value(seen))) : 0;
      if (is_here && pair_first(signal_value(seen)) != args.dispatch.kind_tag) {
        tell_other_kind(args, source, block.epoch);
        ok = false;
      }
    }
    shared.num_messages()[source] = n;
    if (blockIdx.x == 0) {
      call.num_messages[source] = n;
    }
  }
  return __all_sync(kAllLanes, ok);
}

// A part of a message that a warp looks for, and what it has found.  The words of the header say
// all, so they are loaded without order, before the flag of the part.
struct SoughtPart {
  const uint64_t* header;
  const uint64_t* flag;
  uint32_t epoch;
  uint64_t placed;  // lane k: the header's word of selection k
  uint64_t own;     // the first part alone: lane 0 the tag, lane 1 the token
  uint64_t seen;    // the flag

  __device__ SoughtPart(const Args& args, const Block& block, int source, int slot, int part)
      : header(word_at(block.own_bank, args.dispatch.call.layout.header_at(0, source, slot, 0))),
        flag(word_at(block.own_bank, args.dispatch.call.layout.row_flag_at(0, source, slot, part))),
        epoch(block.epoch) {
    const int topk = args.dispatch.call.layout.topk;
    const uint64_t nothing = make_signal(epoch - 1, 0);
    placed = lane_id() < topk ? nothing : make_signal(epoch, kNotHere);
    own = part == 0 && lane_id() < 2 ? nothing : make_signal(epoch, 0);
    seen = nothing;
  }

  __device__ bool has_come(uint64_t word) const {
    return has_just_reached(signal_epoch(word), epoch);
  }
  __device__ bool has_header() const { return has_come(placed) && has_come(own); }
  // One warp loads the words that have not come, and returns whether all are here.
  __device__ __forceinline__ bool look(int topk) {
    if (!has_come(placed)) {
      placed = ptx::ld_relaxed_sys(header + lane_id());
    }
    if (!has_come(own)) {
      own = ptx::ld_relaxed_sys(header + topk + lane_id());
    }
    seen = ptx::ld_acquire_sys(flag);  // pairs with publish_part: the bytes of the part
    return __all_sync(kAllLanes, has_header() && has_come(seen)) != 0;
  }
};

// One warp awaits a part of a message that has not come soon.
__device__ __noinline__ inline Awaited keep_awaiting_part(
    const Args& args, const Block& block, int source, int slot, int part) {
  const int topk = args.dispatch.call.layout.topk;
  SoughtPart sought(args, block, source, slot, part);
  const uint64_t start = ptx::globaltimer();
  for (uint32_t polls = 1; !sought.look(topk); ++polls) {
    if (polls % 64 != 0) {
      continue;
    }
    // A lane looks around for its own words, and the first lane for the flag.
    Awaited got = Awaited::kHere;
    if (!sought.has_header() || (lane_id() == 0 && !sought.has_come(sought.seen))) {
      const uint64_t word = !sought.has_come(sought.placed) ? sought.placed
                            : !sought.has_come(sought.own)  ? sought.own
                                                            : sought.seen;
      got = look_around_once(args.signals(), kOp, block.epoch, source, word, start, polls);
    }
    got = agree(got);
    if (got != Awaited::kHere) {
      return got;
    }
  }
  return Awaited::kHere;
}

// One warp copies num_bytes to several rows of `to`: lane k has the number of one if bit k of
// `here` is set.
template <typename Word, int kAtOnce>
__device__ __forceinline__ void fan_out(
    const std::byte* from, std::byte* to, int row_stride, int num_bytes, uint32_t here, int row) {
  const int num = num_bytes / static_cast<int>(sizeof(Word));
#pragma unroll 1
  for (int first = lane_id(); first - lane_id() < num; first += 32 * kAtOnce) {
    const auto* source = reinterpret_cast<const Word*>(from) + first;
    Word words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i < num) {
        words[i] = load_word(source + 32 * i);
      }
    }
#pragma unroll 1
    for (uint32_t left = here; left != 0; left &= left - 1) {
      const int r = __shfl_sync(kAllLanes, row, __ffs(static_cast<int>(left)) - 1);
      auto* target = reinterpret_cast<Word*>(to + int64_t{r} * row_stride) + first;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + 32 * i < num) {
          store_word(target + 32 * i, words[i]);
        }
      }
    }
  }
}

// One warp copies the scales that came with a row.
__device__ __forceinline__ void fan_out_scales(const LowLatencyDispatchCall& dispatch,
                                               const std::byte* message,
                                               uint32_t here,
                                               int row) {
  const std::byte* from = message + dispatch.scale_at;
  const int bytes = dispatch.scale_bytes;
  if (bytes % 4 == 0) {
    fan_out<uint32_t, 1>(from, dispatch.out_scale, bytes, bytes, here, row);
  } else {
    fan_out<uint8_t, 1>(from, dispatch.out_scale, bytes, bytes, here, row);
  }
}

// One warp stores the scales of a part that was cast into columns, as they are or packed.
// `local_expert` is that of the lane's row.
__device__ __forceinline__ void store_scale_columns(const LowLatencyDispatchCall& dispatch,
                                                    const std::byte* message,
                                                    int part,
                                                    uint32_t here,
                                                    int local_expert,
                                                    int row) {
  const int hidden = dispatch.call.layout.hidden;
  const int num_groups = hidden / kCastGroup;
  const bool is_packed = dispatch.scales == LowLatencyScales::kPackedColumns;
  const int per_column = is_packed ? 4 : 1;
  const int columns = (num_groups + per_column - 1) / per_column;
  constexpr int kGroups = kPartElements / kCastGroup;
  const int column = part * (kGroups / per_column) + lane_id();
  const bool has_column = lane_id() < kGroups / per_column && column < columns;
  const auto* scales = reinterpret_cast<const uint32_t*>(message + hidden);
  uint32_t word = 0;
#pragma unroll 1
  for (int i = 0; i < per_column && has_column; ++i) {
    const int group = column * per_column + i;
    const uint32_t bits = group < num_groups ? load_word(scales + group) : 0;
    word = is_packed ? word | (bits >> 23 & 0xff) << 8 * i : bits;
  }
  // A row before has one word each, and an expert before has columns - 1 more for each row.
  const int64_t max_rows = dispatch.max_rows();
#pragma unroll 1
  for (uint32_t left = here; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const int l = __shfl_sync(kAllLanes, local_expert, k);
    const int r = __shfl_sync(kAllLanes, row, k);
    if (has_column) {
      reinterpret_cast<uint32_t*>(
          dispatch.out_scale)[(int64_t{l} * (columns - 1) + column) * max_rows + r] = word;
    }
  }
}

// One warp moves a part of a message to the rows of its experts.  Returns false when the part has
// not come soon.
template <typename Part>
__device__ __forceinline__ bool receive_part(
    const Args& args, const Block& block, const Pointers& shared, int source, int slot, int part) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const LowLatencyCall& call = dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  SoughtPart sought(args, block, source, slot, part);
#pragma unroll 1
  for (int polls = 0; !sought.look(layout.topk); ++polls) {
    if (polls == kInlinePolls) {
      return false;
    }
  }
  const uint32_t placed = signal_value(sought.placed);
  const auto l = static_cast<int>(pair_first(placed));
  bool is_here = placed != kNotHere;
  int row = 0;
  if (is_here) {
    const auto max_rows = static_cast<int>(dispatch.max_rows());
    const int index =
        shared.bases()[l * layout.num_ranks + source] + static_cast<int>(pair_second(placed));
    row = l * max_rows + index;
    is_here = index < max_rows;  // otherwise the source has raised the fault kNoRoom
  }
  const uint32_t here = __ballot_sync(kAllLanes, is_here);
  if (part == 0) {
    const auto tag = static_cast<int32_t>(__shfl_sync(kAllLanes, signal_value(sought.own), 0));
    const auto token = static_cast<int32_t>(__shfl_sync(kAllLanes, signal_value(sought.own), 1));
    if (is_here) {
      dispatch.out_tags[row] = tag;
      dispatch.out_tokens[row] = token;
    }
    int32_t* rows =
        call.message_rows + (int64_t{slot} * layout.num_ranks + source) * (layout.topk + 1);
    if (lane_id() < layout.topk) {
      rows[lane_id()] = is_here ? row : -1;
    }
    if (lane_id() == 0) {
      rows[layout.topk] = token;
    }
  }
  const std::byte* message = block.own_bank + layout.message_at(0, source, slot);
  const int element_bytes = Part::kIsCast ? 1 : layout.element_bytes;
  const int begin = part * kPartElements;
  const int num = min(kPartElements, layout.hidden - begin);
  fan_out<typename UnitWord<Part::kUnit>::Type, Part::kIsCast ? 2 : 4>(
      message + begin * element_bytes, dispatch.out + begin * element_bytes,
      layout.hidden * element_bytes, num * element_bytes, here, row);
  if constexpr (Part::kIsCast) {
    if (dispatch.scales == LowLatencyScales::kRows) {
      constexpr int kElements = kCastGroup / 4;  // for each byte of a scale
      fan_out<uint32_t, 1>(message + layout.hidden + begin / kElements,
                           dispatch.out_scale + begin / kElements, layout.hidden / kElements,
                           num / kElements, here, row);
    } else {
      store_scale_columns(dispatch, message, part, here, l, row);
    }
  } else if (part == 0 && dispatch.scale_bytes > 0) {
    fan_out_scales(dispatch, message, here, row);
  }
  return true;
}

template <typename Part>
__device__ void receive(const Args& args, Block& block, const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int num_ranks = layout.num_ranks;
  if (warp_id() >= kSendWarps) {
    bool ok = true;
    if (warp_id() == kWarps - 1) {
      ok = find_num_messages(args, block, shared);
    }
    const int width = lanes_per_expert(num_ranks);
    const int at_once = 32 / width;
#pragma unroll 1
    for (int l = (warp_id() - kSendWarps) * at_once; ok && l < call.num_local;
         l += kReceiveWarps * at_once) {
      ok = find_bases(args, block, shared, l, width);
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
#pragma unroll 1
  for (int source = lane_id(); source < num_ranks; source += 32) {
    most = max(most, shared.num_messages()[source]);
  }
  most = __reduce_max_sync(kAllLanes, most);
  const int num_items = most * num_ranks * layout.num_parts;
#pragma unroll 1
  for (int item = receive_unit(warp_id()); item < num_items;) {
    const int message = call.parts.quotient(item);
    const int part = item - message * layout.num_parts;
    const int slot = call.ranks.quotient(message);
    int source = call.rank() + message - slot * num_ranks;
    source -= source >= num_ranks ? num_ranks : 0;
    if (slot < shared.num_messages()[source] &&
        !receive_part<Part>(args, block, shared, source, slot, part)) {
      // No register holds anything but the item over this call.
      const Awaited got = keep_awaiting_part(args, block, source, slot, part);
      if (got == Awaited::kFailed) {
        return;
      }
      if (got == Awaited::kHere) {
        continue;
      }
    }
    item += num_receive_units();
  }
}

}  // namespace moebius::comm::low_latency_dispatch
