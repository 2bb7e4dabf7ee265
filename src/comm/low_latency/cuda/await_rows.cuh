// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the receiving half of a combine does before it sums: it finds which rows of a token come
// back, and awaits them.
#pragma once

#include "comm/device/grid.cuh"
#include "comm/low_latency/cuda/return.cuh"
#include "comm/low_latency/logfmt.h"

namespace moebius::comm::low_latency_combine {

// One of a token's selections; each lane has the selection of its number.
struct Term {
  bool contributes = false;
  float weight = 0.0f;
  int rank = 0;  // of the expert
};

__device__ __forceinline__ Term find_term(const LowLatencyCombineCall& combine,
                                          const Block& block,
                                          int token) {
  const LowLatencyCall& call = combine.call;
  Term term;
  if (lane_id() < call.layout.topk) {
    const int64_t selection = int64_t{token} * call.layout.topk + lane_id();
    const int32_t id = combine.ids[selection];
    term.weight = __ldg(combine.weights + selection);
    if (static_cast<uint32_t>(id) < static_cast<uint32_t>(call.num_experts)) {
      term.rank = static_cast<int>(pair_first(__ldg(call.placement + id)));
      term.contributes = !block.dead.has(term.rank);
    }
  }
  return term;
}

// The rest of await_rows where it has not seen all, or where waits are noted.
__device__ __noinline__ inline bool keep_awaiting_rows(
    const Args& args, const Block& block, const uint64_t* flag, bool contributes, int rank) {
  const LowLatencyCombineCall& combine = args.combine;
  if (combine.wait_us != nullptr) {
    const uint64_t ns =
        time_until_here(args.signals(), block.epoch, contributes, flag, block.begin_ns);
    if (contributes) {
      atomicMax(reinterpret_cast<unsigned long long*>(&combine.call.state->wait_ns[rank]),
                static_cast<unsigned long long>(ns));
    }
  }
  Awaited got = Awaited::kHere;
  if (contributes) {
    const Seen last = keep_awaiting(args.signals(), kOp, block.epoch, rank, flag);
    got = last.got;
    if (got == Awaited::kHere &&
        signal_value(last.signal) != static_cast<uint32_t>(combine.coding)) {
      const CudaLowLatencyLayout& layout = combine.call.layout;
      const auto plain = static_cast<uint32_t>(layout.hidden * layout.element_bytes);
      const auto coded = static_cast<uint32_t>(logfmt::row_bytes(layout.hidden));
      const bool is_coded = combine.coding != LowLatencyCoding::kNone;
      tell_fault(args.signals(), FaultReason::kMismatch, kOp, rank, block.epoch,
                 make_signal(is_coded ? plain : coded, is_coded ? coded : plain));
      got = Awaited::kFailed;
    }
  }
  return agree(got) != Awaited::kFailed;
}

// One warp awaits a part of the rows of a token's selections that contribute.  Returns false when
// the kernel must end.  A rank that is excluded meanwhile is left out when the call is settled.
__device__ __forceinline__ bool await_rows(
    const Args& args, const Block& block, int token, int part, bool contributes, int rank) {
  const LowLatencyCombineCall& combine = args.combine;
  const CudaLowLatencyLayout& layout = combine.call.layout;
  const int64_t selection = int64_t{token} * layout.topk + lane_id();
  const uint64_t* flag = word_at(block.own_bank, layout.return_flag_at(0, selection, part));
  bool is_here = combine.wait_us == nullptr;
  if (contributes && is_here) {
    const uint64_t seen = ptx::ld_acquire_sys(flag);  // pairs with publish_parts: the rows
    is_here = has_just_reached(signal_epoch(seen), block.epoch) &&
              signal_value(seen) == static_cast<uint32_t>(combine.coding);
  }
  if (__all_sync(kAllLanes, is_here) != 0) {
    __syncwarp();  // what each lane has acquired is visible to all
    return true;
  }
  return keep_awaiting_rows(args, block, flag, contributes, rank);
}

// Adds the longest wait for each rank to the caller's statistics.  The whole block calls it when it
// has received.
__device__ inline void note_waits(const LowLatencyCombineCall& combine) {
  LowLatencyDeviceState& state = *combine.call.state;
  if (!comes_last(&state.waited)) {
    return;
  }
  for (int r = static_cast<int>(threadIdx.x); r < combine.call.layout.num_ranks;
       r += kLowLatencyThreads) {
    combine.wait_us[r] += static_cast<int64_t>(__ldcg(&state.wait_ns[r]) / 1000);
    state.wait_ns[r] = 0;
  }
}

}  // namespace moebius::comm::low_latency_combine
