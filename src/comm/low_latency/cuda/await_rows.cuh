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
  bool is_here = true;  // the part of its row, if it contributes
  float weight = 0.0f;
  int rank = 0;  // of the expert, where it is asked for
};

__device__ __forceinline__ const uint64_t* return_flag(const CudaLowLatencyLayout& layout,
                                                       const Block& block,
                                                       int token,
                                                       int part) {
  return word_at(block.own_bank,
                 layout.return_flag_at(0, int64_t{token} * layout.topk + lane_id(), part));
}

// Whether the lane's selection has a row here, in the coding that this rank expects.
__device__ __forceinline__ bool sees_row(const LowLatencyCombineCall& combine,
                                         const Block& block,
                                         int token,
                                         int part) {
  // pairs with publish_parts: the part of the row
  const uint64_t seen = ptx::ld_acquire_sys(return_flag(combine.call.layout, block, token, part));
  return has_just_reached(signal_epoch(seen), block.epoch) &&
         signal_value(seen) == static_cast<uint32_t>(combine.coding);
}

// With sums per rank, the place of a token's first selection on a rank has them.
__device__ __forceinline__ bool is_first_of_rank(bool contributes, int rank) {
  const uint32_t same = __match_any_sync(kAllLanes, contributes ? rank : -1 - lane_id());
  return contributes && __ffs(static_cast<int>(same)) - 1 == lane_id();
}

// Finds a token's terms, and looks once whether their rows are here.  Each selection has a flag,
// which is asked for together with its id.  With sums per rank only the first selection on a rank
// has one, so ranks are found before.  Otherwise they are left out where nobody needs them, since
// they take a load that waits for another.
template <LowLatencySum kSum, bool kNeedsRank = kSum == LowLatencySum::kRanks>
__device__ __forceinline__ Term
find_term(const LowLatencyCombineCall& combine, const Block& block, int token, int part) {
  const LowLatencyCall& call = combine.call;
  Term term;
  if (lane_id() < call.layout.topk) {
    const int64_t selection = int64_t{token} * call.layout.topk + lane_id();
    const int32_t id = combine.ids[selection];
    term.weight = __ldg(combine.weights + selection);
    if (kSum == LowLatencySum::kSelections) {
      term.is_here = sees_row(combine, block, token, part);
    }
    term.contributes = static_cast<uint32_t>(id) < static_cast<uint32_t>(call.num_experts);
    if (term.contributes && (kNeedsRank || block.has_dead)) {
      term.rank = static_cast<int>(pair_first(__ldg(call.placement + id)));
      term.contributes = !block.dead.has(term.rank);
    }
  }
  if (kSum == LowLatencySum::kRanks) {
    term.contributes = is_first_of_rank(term.contributes, term.rank);
    term.is_here = !term.contributes || sees_row(combine, block, token, part);
  }
  return term;
}

// One warp looks for the rows of its lanes' terms for a while.  Returns whether all are here, or
// were awaited before.  Why it does not look for as long as it takes: sooner or later that calls a
// function, over which registers are spilt.  Rows that come so late may be looked for anew.
template <LowLatencySum kSum>
__device__ __forceinline__ bool find_rows(
    const Args& args, const Block& block, int token, int part, const Term& term, bool has_waited) {
  bool waits = term.contributes && !term.is_here && !has_waited;
  uint32_t missing = __ballot_sync(kAllLanes, waits);
  bool asks_for_all = kSum == LowLatencySum::kRanks;
#pragma unroll 1
  for (int polls = 0; polls < kInlinePolls && missing != 0; ++polls) {
    // A warp asks for the first of many missing rows alone, until that has come.
    if (waits && (asks_for_all || (missing & (1u << lane_id()) - 1) == 0)) {
      waits = !sees_row(args.combine, block, token, part);
    }
    const uint32_t still = __ballot_sync(kAllLanes, waits);
    asks_for_all = kSum == LowLatencySum::kRanks || still != missing;
    missing = still;
  }
  __syncwarp();  // what each lane has acquired is visible to all
  return missing == 0;
}

// One warp awaits a part of the rows of a token's selections that contribute.  Returns false when
// the kernel must end.  A rank that is excluded meanwhile is left out when the call is settled.
template <LowLatencySum kSum>
__device__ __noinline__ bool await_rows(const Args& args, const Block& block, int token, int part) {
  const LowLatencyCombineCall& combine = args.combine;
  const CudaLowLatencyLayout& layout = combine.call.layout;
  const Term term = find_term<kSum, /*kNeedsRank=*/true>(combine, block, token, part);
  const uint64_t* flag = return_flag(layout, block, token, part);
  if (combine.wait_us != nullptr) {
    const uint64_t ns =
        time_until_here(args.signals(), block.epoch, term.contributes, flag, block.begin_ns);
    if (term.contributes) {
      atomicMax(reinterpret_cast<unsigned long long*>(&combine.call.state->wait_ns[term.rank]),
                static_cast<unsigned long long>(ns));
    }
  }
  Awaited got = Awaited::kHere;
  if (term.contributes) {
    const Seen last = keep_awaiting(args.signals(), kOp, block.epoch, term.rank, flag);
    got = last.got;
    if (got == Awaited::kHere &&
        signal_value(last.signal) != static_cast<uint32_t>(combine.coding)) {
      const auto plain = static_cast<uint32_t>(layout.hidden * layout.element_bytes);
      const auto coded = static_cast<uint32_t>(logfmt::row_bytes(layout.hidden));
      const bool is_coded = combine.coding != LowLatencyCoding::kNone;
      tell_fault(args.signals(), FaultReason::kMismatch, kOp, term.rank, block.epoch,
                 make_signal(is_coded ? plain : coded, is_coded ? coded : plain));
      got = Awaited::kFailed;
    }
  }
  return agree(got) != Awaited::kFailed;
}

// A block's warps sum all tokens in chunks of kChunk elements.  sum(token, chunk, has_waited)
// returns false when rows have not come soon that were not awaited; it is then called again.  So no
// register holds anything but the item over the call of a function.  Returns false when the kernel
// must end.
template <LowLatencySum kSum, int kChunk, typename Sum>
__device__ __forceinline__ bool receive_all(const Args& args, const Block& block, const Sum& sum) {
  const Divisor& chunks = args.chunks;
  bool has_waited = false;
#pragma unroll 1
  for (int item = receive_unit(warp_id()); item < args.combine.num_tokens * chunks.divisor;) {
    const int token = chunks.quotient(item);
    const int chunk = item - token * chunks.divisor;
    const bool may_sum = has_waited || args.combine.wait_us == nullptr;
    if (may_sum && sum(token, chunk, has_waited)) {
      item += num_receive_units();
      has_waited = false;
    } else if (await_rows<kSum>(args, block, token, chunk * kChunk / kPartElements)) {
      has_waited = true;
    } else {
      return false;
    }
  }
  return true;
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
