// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The half of a low-latency dispatch that receives: it moves messages to the rows of their experts.
#pragma once

#include "comm/low_latency/cuda/dispatch.cuh"

namespace moebius::comm::low_latency_dispatch {

// One warp finds where the rows of each source begin in local expert l; those of lower sources come
// first.  Returns false when the kernel must end.
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
    total = min(total, call.layout.max_tokens * num_ranks);  // only a fault kNoRoom makes it more
    args.dispatch.out_count[l] = total;
    args.dispatch.expert_rows[l] += total;
  }
  return true;
}

__device__ inline bool find_num_messages(const Args& args,
                                         const Block& block,
                                         const Pointers& shared) {
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

}  // namespace moebius::comm::low_latency_dispatch
