// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The half of a low-latency dispatch that receives: it moves messages to the rows of their experts.
#pragma once

#include "comm/low_latency/cuda/dispatch.cuh"

namespace moebius::comm::low_latency_dispatch {

// One warp finds where the rows of each source begin in local expert l; those of lower sources come
// first.  Returns false when the kernel must end.
template <bool kMayExclude>
__device__ inline bool find_bases(const Args& args,
                                  const Block& block,
                                  const Pointers& shared,
                                  int l) {
  const LowLatencyCall& call = args.dispatch.call;
  const int num_ranks = call.layout.num_ranks;
  const int bank = bank_of(block.epoch);
  int32_t total = 0;
  for (int first = 0; first < num_ranks; first += 32) {
    const int source = first + lane_id();
    int32_t count = 0;
    Awaited got = Awaited::kHere;
    if (source < num_ranks && !block.dead.has(source)) {
      uint64_t seen = 0;
      got = await_peer<kMayExclude>(
          args.signals(), kOp, block.epoch, source,
          word_at(call.window(call.rank()), call.layout.count_at(bank, l, source)), &seen);
      count = got == Awaited::kHere ? static_cast<int32_t>(signal_value(seen)) : 0;
    }
    if (!__all_sync(kAllLanes, got != Awaited::kFailed)) {
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
      if (blockIdx.x == 0) {
        args.dispatch.out_ranges[l * num_ranks + source] =
            static_cast<int64_t>(total + sum - count) << 32 | count;
      }
    }
    total += __shfl_sync(kAllLanes, sum, 31);
  }
  if (blockIdx.x == 0 && lane_id() == 0) {
    // Only a fault kNoRoom makes it more.
    total = min(total, static_cast<int32_t>(args.dispatch.max_rows()));
    const bool is_again = (call.phases & kSettlePhase) != 0;
    const int32_t more = total - (is_again ? args.dispatch.out_count[l] : 0);
    args.dispatch.out_count[l] = total;
    args.dispatch.expert_rows[l] += more;
    if (args.dispatch.received != nullptr) {
      args.dispatch.received[l] += more;
    }
  }
  return true;
}

template <bool kMayExclude>
__device__ inline bool find_num_messages(const Args& args,
                                         const Block& block,
                                         const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const int bank = bank_of(block.epoch);
  bool ok = true;
  const auto word_of = [&](int source) {
    return word_at(call.window(call.rank()), call.layout.num_messages_at(bank, source));
  };
  if (blockIdx.x == 0 && args.dispatch.wait_us != nullptr) {
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
  for (int source = lane_id(); source < call.layout.num_ranks; source += 32) {
    int32_t n = 0;
    if (!block.dead.has(source)) {
      uint64_t seen = 0;
      const Awaited got = ok ? await_peer<kMayExclude>(args.signals(), kOp, block.epoch, source,
                                                       word_of(source), &seen)
                             : Awaited::kFailed;
      const bool is_here = got == Awaited::kHere;
      ok = got != Awaited::kFailed;
      n = is_here ? static_cast<int32_t>(pair_second(signal_value(seen))) : 0;
      const uint32_t room = pair_first(signal_value(seen));
      if (is_here && room != static_cast<uint32_t>(args.dispatch.max_tokens)) {
        tell_fault(args.signals(), FaultReason::kRoomMismatch, kOp, source, block.epoch,
                   make_signal(room, static_cast<uint32_t>(args.dispatch.max_tokens)));
        ok = false;
      }
    }
    shared.num_messages[source] = n;
    if (blockIdx.x == 0) {
      call.num_messages[source] = n;
    }
  }
  return __all_sync(kAllLanes, ok);
}

// One warp copies num_bytes to several rows: lane k has the number of one if bit k of `here` is
// set.
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

// One warp copies the scales that came with a row.
__device__ inline void fan_out_scales(const Args& args,
                                      const std::byte* message,
                                      uint32_t here,
                                      int64_t row) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const std::byte* from = message + dispatch.scale_at;
  if (dispatch.scale_bytes % 4 == 0) {
    fan_out<uint32_t>(from, dispatch.out_scale, dispatch.scale_bytes, 0, dispatch.scale_bytes, here,
                      row);
    return;
  }
  for (int i = lane_id(); i - lane_id() < dispatch.scale_bytes; i += 32) {
    const std::byte value = i < dispatch.scale_bytes ? from[i] : std::byte{};
    for (uint32_t left = here; left != 0; left &= left - 1) {
      const int64_t r = __shfl_sync(kAllLanes, row, __ffs(static_cast<int>(left)) - 1);
      if (i < dispatch.scale_bytes) {
        dispatch.out_scale[r * dispatch.scale_bytes + i] = value;
      }
    }
  }
}

// One warp stores the scales of a part that was cast into columns, as they are or packed.
__device__ inline void store_scale_columns(
    const Args& args, const std::byte* message, int part, uint32_t here, int64_t row) {
  const LowLatencyDispatchCall& dispatch = args.dispatch;
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
  for (int i = 0; i < per_column && has_column; ++i) {
    const int group = column * per_column + i;
    const uint32_t bits = group < num_groups ? load_word(scales + group) : 0;
    word = is_packed ? word | (bits >> 23 & 0xff) << 8 * i : bits;
  }
  const int64_t max_rows = dispatch.max_rows();
  for (uint32_t left = here; left != 0; left &= left - 1) {
    const int64_t r = __shfl_sync(kAllLanes, row, __ffs(static_cast<int>(left)) - 1);
    if (has_column) {
      reinterpret_cast<uint32_t*>(
          dispatch.out_scale)[(r / max_rows * columns + column) * max_rows + r % max_rows] = word;
    }
  }
}

// One warp moves a part of a message to the rows of its experts.  Returns false when the kernel
// must end.
template <typename Part>
__device__ bool receive_part(
    const Args& args, const Block& block, const Pointers& shared, int source, int slot, int part) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int bank = bank_of(block.epoch);
  const int topk = layout.topk;
  const int64_t max_rows = args.dispatch.max_rows();
  std::byte* window = call.window(call.rank());
  const uint64_t* header = word_at(window, layout.header_at(bank, source, slot, 0));
  uint64_t word = 0;
  Awaited got =
      await_lanes(args.signals(), kOp, block.epoch, topk, source, header + lane_id(), &word);
  if (got != Awaited::kHere) {
    return got == Awaited::kExcluded;
  }
  bool is_here = lane_id() < topk && signal_value(word) != kNotHere;
  int64_t row = 0;
  if (is_here) {
    const uint32_t l = pair_first(signal_value(word));
    const int64_t index =
        shared.bases[l * static_cast<uint32_t>(layout.num_ranks) + static_cast<uint32_t>(source)] +
        static_cast<int64_t>(pair_second(signal_value(word)));
    row = l * max_rows + index;
    is_here = index < max_rows;  // otherwise the source has raised the fault kNoRoom
  }
  const uint32_t here = __ballot_sync(kAllLanes, is_here);
  if (part == 0) {
    uint64_t own = 0;
    got = await_lanes(args.signals(), kOp, block.epoch, 2, source, header + topk + lane_id(), &own);
    if (got != Awaited::kHere) {
      return got == Awaited::kExcluded;
    }
    const auto tag = static_cast<int32_t>(__shfl_sync(kAllLanes, signal_value(own), 0));
    const auto token = static_cast<int32_t>(__shfl_sync(kAllLanes, signal_value(own), 1));
    if (is_here) {
      args.dispatch.out_tags[row] = tag;
      args.dispatch.out_tokens[row] = token;
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
  got = await_lanes(args.signals(), kOp, block.epoch, 1, source,
                    word_at(window, layout.row_flag_at(bank, source, slot, part)), &seen);
  if (got != Awaited::kHere) {
    return got == Awaited::kExcluded;
  }
  const std::byte* message = window + layout.message_at(bank, source, slot);
  const int element_bytes = Part::kIsCast ? 1 : layout.element_bytes;
  const int begin = part * kPartElements;
  const int num = min(kPartElements, layout.hidden - begin);
  fan_out<typename UnitWord<Part::kUnit>::Type>(
      message, args.dispatch.out, int64_t{layout.hidden} * element_bytes,
      int64_t{begin} * element_bytes, num * element_bytes, here, row);
  if constexpr (Part::kIsCast) {
    if (args.dispatch.scales == LowLatencyScales::kRows) {
      fan_out<uint32_t>(message + layout.hidden, args.dispatch.out_scale,
                        4 * (layout.hidden / kCastGroup), 4 * (begin / kCastGroup),
                        4 * (num / kCastGroup), here, row);
    } else {
      store_scale_columns(args, message, part, here, row);
    }
  } else if (part == 0 && args.dispatch.scale_bytes > 0) {
    fan_out_scales(args, message, here, row);
  }
  return true;
}

template <typename Part, bool kMayExclude>
__device__ void receive(const Args& args, Block& block, const Pointers& shared) {
  const LowLatencyCall& call = args.dispatch.call;
  const CudaLowLatencyLayout& layout = call.layout;
  if (warp_id() >= kSendWarps) {
    bool ok = true;
    if (warp_id() == kWarps - 1) {
      ok = find_num_messages<kMayExclude>(args, block, shared);
    }
    for (int l = warp_id() - kSendWarps; ok && l < call.num_local; l += kReceiveWarps) {
      ok = find_bases<kMayExclude>(args, block, shared, l);
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
    const int source = (call.rank() + message) % layout.num_ranks;
    const int slot = message / layout.num_ranks;
    if (slot < shared.num_messages[source] &&
        !receive_part<Part>(args, block, shared, source, slot, part)) {
      return;
    }
  }
}

}  // namespace moebius::comm::low_latency_dispatch
