// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency combine on a GPU.  Layout and words are those of window_layout.h.
//
// Grid and block are as in dispatch.cu.
//   send     An item is (message, unit of parts).  Each row of the message goes back to the place
//            of its selection on the token's rank.  The flags of all of them come after that, since
//            a release and what it waits for take longer than a row.  With sums per rank, one row
//            per message goes back, and all warps send before they receive.
//   receive  An item is (token, chunk of one word per lane).  A warp awaits the flags of the
//            token's selections, and weights and sums them in order of their slots, in f32; it
//            rounds once.
// Shared memory is that of CombineSharedMap.
#include <type_traits>

#include "comm/low_latency/cuda/await_rows.cuh"
#include "comm/low_latency/cuda/combine_logfmt.cuh"
#include "comm/low_latency/cuda/return.cuh"
#include "comm/low_latency/cuda/sums.cuh"

namespace moebius::comm {

using namespace low_latency_combine;

namespace {

// Lane j gets the j-th, in order of rank, of the selections of which bits are set in `all`.  Why in
// steps of eight: the shuffles of a step do not wait for each other.
__device__ __forceinline__ int order_by_rank(int topk, const Term& own, uint32_t all) {
  constexpr int kStep = 8;
  int place = 0;
  for (int first = 0; first < topk; first += kStep) {
#pragma unroll
    for (int k = first; k < first + kStep; ++k) {
      const int other = __shfl_sync(kAllLanes, own.rank, k);
      place += (all >> k & 1) != 0 && other < own.rank;
    }
  }
  int mine = 0;
  for (int first = 0; first < topk; first += kStep) {
#pragma unroll
    for (int k = first; k < first + kStep; ++k) {
      const int there = __shfl_sync(kAllLanes, place, k);
      mine = (all >> k & 1) != 0 && there == lane_id() ? k : mine;
    }
  }
  return mine;
}

// A warp weights and sums the words of a token's selections, a word per lane.  Returns false when
// rows are missing that were not awaited.
template <typename Type, typename Word, LowLatencySum kSum>
__device__ __forceinline__ bool receive_chunk(
    const Args& args, const Block& block, int token, int chunk, bool has_waited) {
  using Element = typename Type::Element;
  constexpr int kPerWord = static_cast<int>(sizeof(Word) / sizeof(Element));
  const LowLatencyCombineCall& combine = args.combine;
  const CudaLowLatencyLayout& layout = combine.call.layout;
  const int part = chunk * 32 * kPerWord / kPartElements;
  const Term own = find_term<kSum>(combine, block, token, part);
  uint32_t terms = __ballot_sync(kAllLanes, own.contributes);
  int selection = lane_id();  // the selection of term `lane`
  if constexpr (kSum == LowLatencySum::kRanks) {
    selection = order_by_rank(layout.topk, own, terms);
    const int num_terms = __popc(terms);
    terms = num_terms == 32 ? kAllLanes : (1u << num_terms) - 1;
  }
  if (!find_rows<kSum>(args, block, token, part, own, has_waited)) {
    return false;
  }
  const int element = (chunk * 32 + lane_id()) * kPerWord;
  const bool is_inside = element < layout.hidden;
  const std::byte* base = block.own_bank + layout.returned_at(0, int64_t{token} * layout.topk) +
                          int64_t{element} * static_cast<int>(sizeof(Element));
  const auto weight_at = [&](int term) {
    return kSum == LowLatencySum::kRanks ? 1.0f : __shfl_sync(kAllLanes, own.weight, term);
  };
  const auto row_at = [&](int term) {
    const int k = kSum == LowLatencySum::kRanks ? __shfl_sync(kAllLanes, selection, term) : term;
    return reinterpret_cast<const Word*>(base + k * layout.returned_bytes);
  };
  const Word sum = weighted_sum<Type, Word>(terms, is_inside, weight_at, row_at);
  if (is_inside) {
    store_word(reinterpret_cast<Word*>(combine.out + (int64_t{token} * layout.hidden + element) *
                                                         static_cast<int64_t>(sizeof(Element))),
               sum);
  }
  return true;
}

template <typename Type, typename Word, LowLatencySum kSum>
__global__ void __launch_bounds__(kLowLatencyThreads, 1)
    combine_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::byte dynamic_shared[];
  __shared__ Block block;
  const LowLatencyCombineCall& combine = args.combine;
  const LowLatencyCall& call = combine.call;
  const CudaLowLatencyLayout& layout = call.layout;

  if (!begin_combine(args, block)) {
    return;
  }
  if ((call.phases & kSendPhase) != 0) {
    if constexpr (kSum == LowLatencySum::kRanks) {
      if (warp_id() >= kSendWarps) {
        send_weights(args, block);
      }
      if (!send_sums<Type, Word>(args, block)) {
        return;
      }
    } else if (sizeof(Word) == 16 && combine.in_bulk) {
      if (warp_id() < kSendWarps) {
        const auto map = CombineSharedMap::make(layout.element_bytes, combine.stage_parts);
        const int most_parts = max_unit_parts(combine.stage_parts);
        send_in_bulk(SendCursor(args, block, kSendWarps, most_parts),
                     dynamic_shared + map.stage(warp_id()),
                     reinterpret_cast<uint64_t*>(dynamic_shared + map.barrier(warp_id())));
      }
    } else {
      const int num_senders = (call.phases & kReceivePhase) == 0 ? kWarps : kSendWarps;
      if (warp_id() < num_senders) {
        send_plain<Word>(SendCursor(args, block, num_senders, layout.num_parts));
      }
    }
  }
  if ((call.phases & kReceivePhase) != 0) {
    constexpr int kChunk = 32 * static_cast<int>(sizeof(Word) / sizeof(typename Type::Element));
    const auto sum = [&](int token, int chunk, bool has_waited) {
      return receive_chunk<Type, Word, kSum>(args, block, token, chunk, has_waited);
    };
    if (!receive_all<kSum, kChunk>(args, block, sum)) {
      return;
    }
    if (combine.wait_us != nullptr) {
      note_waits(combine);
    }
  }
}

using Kernel = void (*)(Args);

// Rows that are not aligned to 16 bytes are moved by single elements.
template <typename Type, LowLatencySum kSum>
Kernel find_kernel(bool is_aligned) {
  using Single = std::conditional_t<sizeof(typename Type::Element) == 4, uint32_t, uint16_t>;
  return is_aligned ? combine_kernel<Type, int4, kSum> : combine_kernel<Type, Single, kSum>;
}

// Rows of a logfmt coding.
Kernel find_logfmt_kernel(DType dtype) {
  return with_row_type(dtype,
                       [](auto row) -> Kernel { return combine_logfmt_kernel<decltype(row)>; });
}

Kernel find_kernel(DType dtype, LowLatencySum sum, bool is_aligned) {
  return with_row_type(dtype, [&](auto row) {
    using Type = decltype(row);
    return sum == LowLatencySum::kRanks ? find_kernel<Type, LowLatencySum::kRanks>(is_aligned)
                                        : find_kernel<Type, LowLatencySum::kSelections>(is_aligned);
  });
}

}  // namespace

void load_low_latency_combine(int device, DType dtype, LowLatencySum sum, int64_t shared_bytes) {
  for (const bool is_aligned : {true, false}) {
    cuda::allow_shared_bytes(
        device, reinterpret_cast<const void*>(find_kernel(dtype, sum, is_aligned)), shared_bytes);
  }
  cuda::load_kernels(device, find_logfmt_kernel(dtype));
}

void launch_low_latency_combine(const LowLatencyCombineCall& call, const LowLatencyGrid& grid) {
  const CudaLowLatencyLayout& layout = call.call.layout;
  const bool is_aligned = row_alignment(layout, call.x, call.out) % 16 == 0;
  const bool is_coded = call.coding != LowLatencyCoding::kNone;
  const int chunk = is_coded     ? static_cast<int>(logfmt::kGroup)
                    : is_aligned ? 32 * 16 / layout.element_bytes
                                 : 32;
  launch_call(
      is_coded ? find_logfmt_kernel(call.dtype) : find_kernel(call.dtype, call.sum, is_aligned),
      grid, "low latency combine", call, Divisor::of((layout.hidden + chunk - 1) / chunk));
}

}  // namespace moebius::comm
