// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency combine on a GPU; layout and words in low_latency_layout.h.
//
// Grid and block as in low_latency_dispatch.cu.
//   send     item (row, part): goes back to the place of its selection on the token's rank, then
//   its
//            flag.
//   receive  item (token, chunk of one word per lane): awaits the flags of the token's selections,
//            weights and sums them in order of their slots, in f32, rounded once.
// Shared memory: the first row of each local expert among the received, i32 [L + 1].
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "comm/cuda/low_latency_device.cuh"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

constexpr SignalOp kOp = SignalOp::kLowLatencyCombine;

struct Args {
  LowLatencyCombineCall combine;
  SignalContext signals;
};

struct Block {
  uint32_t epoch;
  uint64_t dead;
  bool has_failed;
};

__device__ __forceinline__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float widen(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float widen(float value) {
  return value;
}
__device__ __forceinline__ void round_to(float value, __nv_bfloat16& to) {
  to = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void round_to(float value, __half& to) {
  to = __float2half_rn(value);
}
__device__ __forceinline__ void round_to(float value, float& to) {
  to = value;
}

// The whole block: offsets[l] = rows of the experts before l.
__device__ void find_offsets(const LowLatencyCall& call, int32_t* offsets) {
  if (warp_id() == 0) {
    int32_t total = 0;
    for (int first = 0; first < call.num_local; first += 32) {
      const int l = first + lane_id();
      const int32_t count = l < call.num_local ? call.num_rows[l] : 0;
      int32_t sum = count;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int32_t before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
        sum += lane_id() >= step ? before : 0;
      }
      if (l < call.num_local) {
        offsets[l] = total + sum - count;
      }
      total += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane_id() == 0) {
      offsets[call.num_local] = total;
    }
  }
  __syncthreads();
}

// The expert of the n-th received row: the last one whose rows begin at or before it.
__device__ int expert_of(const int32_t* offsets, int num_local, int n) {
  int low = 0;
  int high = num_local - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offsets[middle] <= n) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <typename Word, int kElementBytes>
__device__ void send_part(const Args& args, const Block& block, int64_t row, int part) {
  constexpr int kWordBytes = static_cast<int>(sizeof(Word));
  constexpr int kAtOnce = kWordBytes == 16 ? kPartElements * kElementBytes / 16 / 32 : 4;
  const LowLatencyCall& call = args.combine.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int begin = part * kPartElements;
  const int num = min(kPartElements, layout.hidden - begin) * kElementBytes / kWordBytes;
  const auto* from =
      reinterpret_cast<const Word*>(args.combine.x + (row * layout.hidden + begin) * kElementBytes);
  const RowOrigin origin = call.origins[row];
  if (has_rank(block.dead, origin.source)) {
    return;
  }
  const int bank = bank_of(block.epoch);
  std::byte* window = call.windows[origin.source];
  auto* to = reinterpret_cast<Word*>(window + layout.returned_at(bank, origin.selection) +
                                     int64_t{begin} * kElementBytes);
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
  __syncwarp();
  if (lane_id() == 0) {
    publish(word_at(window, layout.return_flag_at(bank, origin.selection, part)), block.epoch, 0);
  }
}

// One lane's words of a token's selections, weighted and summed.
template <typename Element, typename Word>
__device__ bool receive_chunk(const Args& args, const Block& block, int token, int chunk) {
  constexpr int kPerWord = static_cast<int>(sizeof(Word) / sizeof(Element));
  constexpr int kAtOnce = 4;
  const LowLatencyCombineCall& combine = args.combine;
  const LowLatencyCall& call = combine.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int bank = bank_of(block.epoch);
  std::byte* window = call.windows[call.rank];
  const int64_t first_selection = int64_t{token} * layout.topk;

  bool contributes = false;
  float weight = 0.0f;
  int rank = 0;
  if (lane_id() < layout.topk) {
    const int32_t id = __ldg(combine.ids + first_selection + lane_id());
    weight = __ldg(combine.weights + first_selection + lane_id());
    if (static_cast<uint32_t>(id) < static_cast<uint32_t>(call.num_experts)) {
      rank = static_cast<int>(home_rank(__ldg(call.placement + id)));
      contributes = !has_rank(block.dead, rank);
    }
  }
  const int part = chunk * 32 * kPerWord / kPartElements;
  bool ok = true;
  if (contributes) {
    uint64_t seen = 0;
    ok = await_signal(
        args.signals, kOp, block.epoch, rank,
        word_at(window, layout.return_flag_at(bank, first_selection + lane_id(), part)), &seen);
  }
  if (__all_sync(kAllLanes, ok) == 0) {
    return false;
  }
  __syncwarp();  // what each lane has acquired is visible to all
  uint32_t left = __ballot_sync(kAllLanes, contributes);

  const int element = (chunk * 32 + lane_id()) * kPerWord;
  const bool is_inside = element < layout.hidden;
  const std::byte* base = window + layout.returned_at(bank, first_selection) +
                          int64_t{element} * static_cast<int>(sizeof(Element));
  float sum[kPerWord];
#pragma unroll
  for (int i = 0; i < kPerWord; ++i) {
    sum[i] = 0.0f;
  }
  while (left != 0) {
    Word words[kAtOnce];
    float weights[kAtOnce];
    int taken = 0;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (left != 0) {
        const int k = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        weights[j] = __shfl_sync(kAllLanes, weight, k);
        if (is_inside) {
          words[j] = load_word(reinterpret_cast<const Word*>(base + k * layout.returned_bytes));
        }
        taken = j + 1;
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (j < taken && is_inside) {
        const auto* x = reinterpret_cast<const Element*>(&words[j]);
#pragma unroll
        for (int i = 0; i < kPerWord; ++i) {
          sum[i] += weights[j] * widen(x[i]);
        }
      }
    }
  }
  if (is_inside) {
    Word rounded;
    auto* y = reinterpret_cast<Element*>(&rounded);
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) {
      round_to(sum[i], y[i]);
    }
    store_word(reinterpret_cast<Word*>(combine.out + (int64_t{token} * layout.hidden + element) *
                                                         static_cast<int64_t>(sizeof(Element))),
               rounded);
  }
  return true;
}

template <typename Element, typename Word>
__global__ void __launch_bounds__(kLowLatencyThreads, 1)
    combine_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  __shared__ Block block;
  const LowLatencyCombineCall& combine = args.combine;
  const LowLatencyCall& call = combine.call;
  const CudaLowLatencyLayout& layout = call.layout;
  auto* offsets = reinterpret_cast<int32_t*>(dynamic_shared);

  if (threadIdx.x == 0) {
    block.epoch = call.state->place_epoch[call.place];
    block.dead = call.state->dead;
    block.has_failed = is_aborted(args.signals);
  }
  __syncthreads();
  if (block.has_failed) {
    return;
  }
  if ((call.phases & kSendPhase) != 0) {
    if (blockIdx.x == 0) {
      tell_unpacked(call, block.dead, 0, call.state->unpacked[0]);
      tell_unpacked(call, block.dead, 1, call.state->unpacked[1]);
    }
    find_offsets(call, offsets);
    if (warp_id() < kSendWarps || (call.phases & kReceivePhase) == 0) {
      const int num_senders = (call.phases & kReceivePhase) == 0 ? kWarps : kSendWarps;
      const int num_items = offsets[call.num_local] * layout.num_parts;
      const int64_t max_rows = int64_t{layout.max_tokens} * layout.num_ranks;
      for (int item = spread_warp(warp_id()); item < num_items;
           item += static_cast<int>(gridDim.x) * num_senders) {
        const int n = item / layout.num_parts;
        const int l = expert_of(offsets, call.num_local, n);
        send_part<Word, static_cast<int>(sizeof(Element))>(
            args, block, l * max_rows + n - offsets[l], item % layout.num_parts);
      }
    }
  }
  if ((call.phases & kReceivePhase) != 0) {
    constexpr int kChunk = 32 * static_cast<int>(sizeof(Word) / sizeof(Element));
    const int chunks = (layout.hidden + kChunk - 1) / kChunk;
    for (int item = receive_unit(warp_id()); item < combine.num_tokens * chunks;
         item += num_receive_units()) {
      if (!receive_chunk<Element, Word>(args, block, item / chunks, item % chunks)) {
        return;
      }
    }
  }
}

using Kernel = void (*)(Args);

Kernel find_kernel(DType dtype, bool is_aligned) {
  switch (dtype) {
    case DType::kF32:
      return is_aligned ? combine_kernel<float, int4> : combine_kernel<float, uint32_t>;
    case DType::kF16:
      return is_aligned ? combine_kernel<__half, int4> : combine_kernel<__half, uint16_t>;
    default:
      return is_aligned ? combine_kernel<__nv_bfloat16, int4>
                        : combine_kernel<__nv_bfloat16, uint16_t>;
  }
}

}  // namespace

void load_low_latency_combine(int device, DType dtype, int64_t shared_bytes) {
  for (const bool is_aligned : {true, false}) {
    cuda::allow_shared_bytes(device, reinterpret_cast<const void*>(find_kernel(dtype, is_aligned)),
                             shared_bytes);
  }
}

void launch_low_latency_combine(const LowLatencyCombineCall& call,
                                int num_blocks,
                                int64_t shared_bytes,
                                int device,
                                void* stream) {
  const cuda::DeviceGuard guard(device);
  const Args args{call, make_signal_context(call.call)};
  const int64_t row_bytes = int64_t{call.call.layout.hidden} * call.call.layout.element_bytes;
  const int64_t alignment = row_bytes | static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.x)) |
                            static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.out));
  find_kernel(
      call.dtype,
      alignment % 16 == 0)<<<static_cast<unsigned>(num_blocks), kLowLatencyThreads,
                             static_cast<size_t>(shared_bytes), cuda::as_stream(stream)>>>(args);
  cuda::check_launch("low latency combine");
}

}  // namespace moebius::comm
