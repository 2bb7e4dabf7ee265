// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency dispatch on a GPU.  Layout and words are those of window_layout.h; places and banks
// are explained in kernels.h.
//
// Grid: any number of blocks that fit on the GPU at once.  A block waits for others of its rank
// through the window only, as it does for peers.
// Block: kSendWarps senders and kReceiveWarps receivers.  Warps take items of work:
//   send     An item is (token, part).  The part is loaded once, cast, and stored to the mailboxes
//            of all ranks with an expert of the token; then come its flags.  Receivers first send
//            the headers, an item per token.  The last block sends the counts per expert and the
//            numbers of messages.
//   receive  Receivers build the table of row bases from the counts.  An item is (message, part).
// Where a message stands in its mailbox, and where its rows go, follows from the ids alone.
// Shared memory: ids, homes of the experts, ranks of each token, counts and bases, as in
// DispatchSharedMap.
#include "comm/low_latency/cuda/cast.cuh"
#include "comm/low_latency/cuda/copy.cuh"
#include "comm/low_latency/cuda/receive.cuh"
#include "comm/low_latency/cuda/send.cuh"

namespace moebius::comm {

using namespace low_latency_dispatch;

namespace {

template <typename Part, int kWords>
__global__ void __launch_bounds__(kLowLatencyThreads, 1)
    dispatch_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  __shared__ Block block;
  const LowLatencyDispatchCall& dispatch = args.dispatch;
  const LowLatencyCall& call = dispatch.call;
  const Pointers shared{dynamic_shared, dispatch.shared};

  if ((call.phases & kSendPhase) != 0) {
    if (warp_id() < kSendWarps) {
      Part part;
      const int first = spread_warp(warp_id());
      if (first < dispatch.num_tokens * call.layout.num_parts) {
        const int token = call.parts.quotient(first);
        part.load(dispatch.x + int64_t{token} * call.layout.hidden * call.layout.element_bytes,
                  call.layout.hidden, first - token * call.layout.num_parts);
      }
      if (!begin_send<kWords, true>(args, block, shared)) {
        return;
      }
      send<kWords>(args, block, shared, part);
    } else {
      if (blockIdx.x == 0 && warp_id() == kWarps - 1) {
        // The peers are told before anything is awaited.  The previous call of this bank was
        // received, or never will be.  Of the other bank they are told the latest call that was
        // received.
        const uint32_t epoch = *reinterpret_cast<volatile const uint32_t*>(&call.state->epoch) + 1;
        const int bank = bank_of(epoch);
        if (epoch > 2) {
          tell_unpacked(call, call.state->exclusions.dead, bank, make_signal(epoch - 2, 0));
          if (lane_id() == 0) {  // otherwise the next call would take it back
            call.state->unpacked[bank] = make_signal(epoch - 2, 0);
          }
        }
        tell_unpacked(call, call.state->exclusions.dead, 1 - bank, call.state->unpacked[1 - bank]);
      }
      if (!begin_send<kWords, false>(args, block, shared)) {
        return;
      }
      if (blockIdx.x == gridDim.x - 1) {
        send_counts<kWords>(args, block, shared);
      }
#pragma unroll 1
      for (int token = spread_warp(warp_id() - kSendWarps); token < dispatch.num_tokens;
           token += static_cast<int>(gridDim.x) * kReceiveWarps) {
        send_headers<kWords>(args, block, shared, token);
      }
    }
  } else {
    if (is_settled(call)) {
      return;
    }
    if (threadIdx.x == 0) {
      block.begin(args, call.state->place_epoch[call.place]);
    }
    if (warp_id() == kWarps - 1) {
      block.note_abort(call);
    }
    __syncthreads();
    if (block.has_failed) {
      return;
    }
  }
  if ((call.phases & kReceivePhase) != 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      // It holds for the kernels after this one, which tell the peers.
      call.state->unpacked[bank_of(block.epoch)] = make_signal(block.epoch, 0);
    }
    receive<Part>(args, block, shared);
  }
}

using Kernel = void (*)(Args);

template <int kWords>
Kernel find_kernel(DType dtype, LowLatencyCast cast, int64_t alignment) {
  if (cast != LowLatencyCast::kNone) {
    return with_cast_type(dtype, [](auto type) -> Kernel {
      return dispatch_kernel<CastPart<decltype(type)>, kWords>;
    });
  }
  if (dtype == DType::kF32) {
    return alignment % 16 == 0 ? dispatch_kernel<CopyPart<16, 4>, kWords>
                               : dispatch_kernel<CopyPart<4, 4>, kWords>;
  }
  return alignment % 16 == 0  ? dispatch_kernel<CopyPart<16, 2>, kWords>
         : alignment % 4 == 0 ? dispatch_kernel<CopyPart<4, 2>, kWords>
                              : dispatch_kernel<CopyPart<2, 2>, kWords>;
}

// The kernel that moves rows of `dtype` that begin at multiples of `alignment` bytes.
Kernel find_kernel(int num_ranks, DType dtype, LowLatencyCast cast, int64_t alignment) {
  return with_rank_mask_words(num_ranks, [&](auto words) {
    return find_kernel<decltype(words)::value>(dtype, cast, alignment);
  });
}

}  // namespace

void load_low_latency_dispatch(int device, DType dtype, int num_ranks, int64_t shared_bytes) {
  for (const LowLatencyCast cast : {LowLatencyCast::kNone, LowLatencyCast::kFp8}) {
    for (const int64_t alignment : {16, 4, 2}) {
      cuda::allow_shared_bytes(
          device, reinterpret_cast<const void*>(find_kernel(num_ranks, dtype, cast, alignment)),
          shared_bytes);
    }
  }
}

void launch_low_latency_dispatch(const LowLatencyDispatchCall& call, const LowLatencyGrid& grid) {
  const int64_t alignment = row_alignment(call.call.layout, call.x, call.out);
  launch_call(find_kernel(call.call.layout.num_ranks, call.dtype, call.cast, alignment), grid,
              "low latency dispatch", call);
}

}  // namespace moebius::comm
