// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/device/grid.cuh"
#include "comm/device/sum_copies.cuh"
#include "comm/low_latency/cuda/cast.cuh"
#include "comm/low_latency/cuda/logfmt.cuh"
#include "comm/low_latency/cuda/low_latency_messages.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpLanes;
constexpr int64_t kMaxBlocks = 1024;

__device__ int64_t first_item() {
  return int64_t{blockIdx.x} * kWarpsPerBlock + warp_id();
}
__device__ int64_t item_stride() {
  return int64_t{gridDim.x} * kWarpsPerBlock;
}
unsigned grid_for(int64_t num_items) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((num_items + kWarpsPerBlock - 1) / kWarpsPerBlock, 1, kMaxBlocks));
}

// The row travels as it is.
struct PlainRow {
  static constexpr bool kIsCast = false;
};

template <typename Row>
__global__ void __launch_bounds__(kThreads)
    send_messages_kernel(const __grid_constant__ SendMessagesArgs args) {
  const Mailboxes& boxes = args.boxes;
  if (blockIdx.x == 0 && threadIdx.x < boxes.num_ranks) {
    *reinterpret_cast<MailboxHeader*>(args.out + threadIdx.x * boxes.mailbox_bytes) = {
        args.copies[threadIdx.x], boxes.row.value_bytes, boxes.row.scale_bytes, boxes.max_tokens};
  }
  for (int64_t token = first_item(); token < args.num_tokens; token += item_stride()) {
    const std::byte* row =
        args.x + token * (Row::kIsCast ? boxes.row_bytes : boxes.row.value_bytes);
    const auto for_each_message = [&](auto&& visit) {
      for (int r = 0; r < boxes.num_ranks; ++r) {
        const int64_t place = args.index[token * boxes.num_ranks + r];
        if (place >= 0) {
          visit(args.out + r * boxes.mailbox_bytes + LowLatencyLayout::kHeaderBytes +
                place * boxes.message_bytes);
        }
      }
    };
    for_each_message([&](std::byte* message) {
      auto* words = reinterpret_cast<int32_t*>(message);
      if (lane_id() == 0) {
        words[0] = static_cast<int32_t>(token);
        words[LowLatencyLayout::kTagWord] = args.tags != nullptr ? args.tags[token] : -1;
      }
      for (int k = lane_id(); k < boxes.topk; k += kWarpLanes) {
        words[LowLatencyLayout::kFirstIdWord + k] = args.ids[token * boxes.topk + k];
      }
    });
    if constexpr (Row::kIsCast) {
      for (int part = 0; part * kPartElements < boxes.hidden; ++part) {
        Row cast;
        cast.load(row, boxes.hidden, part);
        cast.prepare(args.cast == LowLatencyCast::kFp8Ue8m0);
        const float scale = cast.own_scale();
        for_each_message([&](std::byte* message) {
          cast.store(message + boxes.row_offset, boxes.hidden, part, scale);
        });
      }
    } else {
      for_each_message([&](std::byte* message) {
        copy_plain(message + boxes.row_offset, row, boxes.row.value_bytes, lane_id());
        if (args.x_scale != nullptr) {
          copy_plain(message + boxes.row_offset + boxes.row.scale_offset(),
                     args.x_scale + token * boxes.row.scale_bytes, boxes.row.scale_bytes,
                     lane_id());
        }
      });
    }
  }
}

// Message `i` of all in order of (source, slot); null past the source's last one.
__device__ const std::byte* find_message(const Mailboxes& boxes, const std::byte* in, int64_t i) {
  const std::byte* mailbox = in + i / boxes.max_tokens * boxes.mailbox_bytes;
  const int64_t slot = i % boxes.max_tokens;
  return slot < *reinterpret_cast<const int64_t*>(mailbox)
             ? mailbox + LowLatencyLayout::kHeaderBytes + slot * boxes.message_bytes
             : nullptr;
}
__device__ int32_t message_id(const std::byte* message, int k) {
  return reinterpret_cast<const int32_t*>(message)[LowLatencyLayout::kFirstIdWord + k];
}

// The sum of `count` over the threads of lower index, and over all threads.
struct Sums {
  int before;
  int all;
};
__device__ Sums sum_threads(int count) {
  __shared__ int of_warp[kWarpsPerBlock];
  int sum = count;
#pragma unroll
  for (int step = 1; step < kWarpLanes; step *= 2) {
    const int lower = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
    sum += lane_id() >= step ? lower : 0;
  }
  __syncthreads();  // all threads have read the last sums
  if (lane_id() == kWarpLanes - 1) {
    of_warp[warp_id()] = sum;
  }
  __syncthreads();
  Sums sums{sum - count, 0};
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    sums.before += w < warp_id() ? of_warp[w] : 0;
    sums.all += of_warp[w];
  }
  return sums;
}

// Numbers the selections of messages [begin, end) that belong to a block, from `base` on, in order
// of (message, k), up to `most` of them.  Returns how many it has numbered.
template <typename Belongs>
__device__ int number_selections(const UnpackArgs& args,
                                 int64_t begin,
                                 int64_t end,
                                 int64_t base,
                                 int64_t most,
                                 int32_t* numbers,
                                 const Belongs& belongs) {
  const int topk = args.boxes.topk;
  int total = 0;
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const std::byte* message = i < end ? find_message(args.boxes, args.in, i) : nullptr;
    int count = 0;
    for (int k = 0; k < topk && message != nullptr; ++k) {
      count += belongs(message_id(message, k));
    }
    const Sums sums = sum_threads(count);
    int64_t number = int64_t{total} + sums.before;
    for (int k = 0; k < topk && count > 0; ++k) {
      if (belongs(message_id(message, k)) && number < most) {
        numbers[i * topk + k] = static_cast<int32_t>(base + number++);
      }
    }
    total += sums.all;
  }
  return static_cast<int>(min(int64_t{total}, most));
}

// Whether the expert is on this rank.  The ids of a message may be anything when the exchange was
// given up; for the same reason an expert may seem to have more rows than a source may send it.
__device__ bool is_here(const UnpackArgs& args, int32_t id) {
  return id >= 0 && id < args.num_experts && args.rank_of[id] == args.rank;
}

// Blocks [0, L) number the rows of an expert each, blocks [L, L + R) what a source has sent.
__global__ void __launch_bounds__(kThreads)
    number_selections_kernel(const __grid_constant__ UnpackArgs args) {
  const int64_t num_messages = int64_t{args.boxes.num_ranks} * args.boxes.max_tokens;
  const auto block = static_cast<int>(blockIdx.x);
  if (block < args.num_local) {
    int total = 0;
    for (int source = 0; source < args.boxes.num_ranks; ++source) {
      const int64_t begin = int64_t{source} * args.boxes.max_tokens;
      const int count = number_selections(
          args, begin, begin + args.boxes.max_tokens, block * num_messages + total,
          num_messages - total, args.rows,
          [&](int32_t id) { return is_here(args, id) && args.local_of[id] == block; });
      if (threadIdx.x == 0) {
        args.out_ranges[block * args.boxes.num_ranks + source] =
            static_cast<int64_t>(total) << 32 | count;
      }
      total += count;
    }
    if (threadIdx.x == 0) {
      args.out_count[block] = total;
      args.expert_rows[block] += total;
      if (args.received != nullptr) {
        args.received[block] += total;
      }
    }
  } else {
    const int source = block - args.num_local;
    const int64_t begin = int64_t{source} * args.boxes.max_tokens;
    const int64_t most = int64_t{args.boxes.max_tokens} * args.boxes.topk;
    const int total =
        number_selections(args, begin, begin + args.boxes.max_tokens, 0, most, args.numbers,
                          [&](int32_t id) { return is_here(args, id); });
    if (threadIdx.x == 0) {
      args.from_sources[source] = total;
    }
  }
}

// Calls visit(message, i, k, row) for every selection k of message i that has a row here; a warp
// takes a message.  `args` is that of either kernel below.
template <typename Args, typename Visit>
__device__ __forceinline__ void for_each_row(const Args& args, const Visit& visit) {
  const Mailboxes& boxes = args.boxes;
  for (int64_t i = first_item(); i < int64_t{boxes.num_ranks} * boxes.max_tokens;
       i += item_stride()) {
    const std::byte* message = find_message(boxes, args.in, i);
    for (int k = 0; k < boxes.topk && message != nullptr; ++k) {
      const int64_t row = args.rows[i * boxes.topk + k];
      if (row >= 0) {
        visit(message, i, k, row);
      }
    }
  }
}

// One warp stores the scales of a cast, f32 [G], into columns, as they are or packed.
__device__ void store_scale_columns(const UnpackArgs& args, const uint32_t* scales, int64_t row) {
  const int64_t max_rows = args.boxes.num_messages();
  const int num_groups = static_cast<int>(args.boxes.row.scale_bytes / 4);
  const bool is_packed = args.scales == LowLatencyScales::kPackedColumns;
  const int per_column = is_packed ? 4 : 1;
  const int columns = (num_groups + per_column - 1) / per_column;
  for (int c = lane_id(); c < columns; c += kWarpLanes) {
    uint32_t word = 0;
    for (int i = 0; i < per_column && c * per_column + i < num_groups; ++i) {
      const uint32_t bits = scales[c * per_column + i];
      word = is_packed ? word | (bits >> 23 & 0xff) << 8 * i : bits;
    }
    reinterpret_cast<uint32_t*>(
        args.out_scale)[(row / max_rows * columns + c) * max_rows + row % max_rows] = word;
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_messages_kernel(const __grid_constant__ UnpackArgs args) {
  for_each_row(args, [&](const std::byte* message, int64_t, int, int64_t row) {
    const std::byte* values = message + args.boxes.row_offset;
    const LowLatencyRow& bytes = args.boxes.row;
    copy_plain(args.out + row * bytes.value_bytes, values, bytes.value_bytes, lane_id());
    if (bytes.scale_bytes > 0 && args.scales == LowLatencyScales::kRows) {
      copy_plain(args.out_scale + row * bytes.scale_bytes, values + bytes.scale_offset(),
                 bytes.scale_bytes, lane_id());
    } else if (bytes.scale_bytes > 0) {
      store_scale_columns(args, reinterpret_cast<const uint32_t*>(values + bytes.scale_offset()),
                          row);
    }
    if (lane_id() == 0) {
      const auto* words = reinterpret_cast<const int32_t*>(message);
      args.out_tags[row] = words[LowLatencyLayout::kTagWord];
      args.out_tokens[row] = words[0];
    }
  });
}

template <typename Type, bool kIsCoded>
__global__ void __launch_bounds__(kThreads)
    return_rows_kernel(const __grid_constant__ ReturnRowsArgs args) {
  const Mailboxes& boxes = args.boxes;
  for_each_row(args, [&](const std::byte* message, int64_t i, int k, int64_t row) {
    std::byte* returned = args.block[i / boxes.max_tokens] +
                          args.numbers[i * boxes.topk + k] * args.returned.message_bytes;
    if (lane_id() == 0) {
      reinterpret_cast<int32_t*>(returned)[0] = *reinterpret_cast<const int32_t*>(message);
      reinterpret_cast<int32_t*>(returned)[1] = k;
    }
    std::byte* to = returned + ReturnedRows::kHeader;
    const std::byte* from = args.x + row * boxes.row_bytes;
    if constexpr (kIsCoded) {
      for (int group = 0; group * logfmt::kGroup < boxes.hidden; ++group) {
        encode_group<Type>(reinterpret_cast<const typename Type::Element*>(from), to, boxes.hidden,
                           group);
      }
    } else {
      copy_plain(to, from, boxes.row_bytes, lane_id());
    }
  });
}

// The blocks of row r (blockIdx.y) take what rank r has returned.
__global__ void find_places_kernel(const __grid_constant__ SumReturnedArgs args) {
  const Mailboxes& boxes = args.boxes;
  const int rank = static_cast<int>(blockIdx.y);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < args.num_rows[rank];
       i += int64_t{gridDim.x} * kThreads) {
    const std::byte* returned = args.block[rank] + i * args.returned.message_bytes;
    const int64_t token = reinterpret_cast<const int32_t*>(returned)[0];
    const int64_t slot = reinterpret_cast<const int32_t*>(returned)[1];
    // Anything may lie there when the exchange was given up.
    if (token >= 0 && token < args.num_tokens && slot >= 0 && slot < boxes.topk) {
      args.places[token * boxes.topk + slot] = returned + ReturnedRows::kHeader;
    }
  }
}

// A warp takes a token.
template <typename Type>
__global__ void __launch_bounds__(kThreads)
    sum_returned_kernel(const __grid_constant__ SumReturnedArgs args) {
  using Element = typename Type::Element;
  const Mailboxes& boxes = args.boxes;
  for (int64_t token = first_item(); token < args.num_tokens; token += item_stride()) {
    auto* out = reinterpret_cast<Element*>(args.out + token * boxes.row_bytes);
    for (int e = lane_id(); e < boxes.hidden; e += kWarpLanes) {
      float sum = 0.0f;
      for (int k = 0; k < boxes.topk; ++k) {
        const std::byte* row = args.places[token * boxes.topk + k];
        if (row != nullptr) {
          sum += args.weights[token * boxes.topk + k] *
                 Type::load(reinterpret_cast<const Element*>(row)[e]);
        }
      }
      out[e] = Type::round(sum);
    }
  }
}

// A warp takes a group of a token.
template <typename Type>
__global__ void __launch_bounds__(kThreads)
    sum_coded_kernel(const __grid_constant__ SumReturnedArgs args) {
  using Element = typename Type::Element;
  const Mailboxes& boxes = args.boxes;
  const int num_groups = boxes.hidden / static_cast<int>(logfmt::kGroup);
  for (int64_t item = first_item(); item < int64_t{args.num_tokens} * num_groups;
       item += item_stride()) {
    const int64_t token = item / num_groups;
    const auto group = static_cast<int>(item % num_groups);
    float sum[kLogfmtPerLane] = {};
    for (int k = 0; k < boxes.topk; ++k) {
      const std::byte* row = args.places[token * boxes.topk + k];
      if (row != nullptr) {
        add_coded_group(row, boxes.hidden, group, args.weights[token * boxes.topk + k], sum);
      }
    }
    auto* out = reinterpret_cast<Element*>(args.out + token * boxes.row_bytes) +
                group * logfmt::kGroup + kLogfmtPerLane * lane_id();
#pragma unroll
    for (int i = 0; i < kLogfmtPerLane; ++i) {
      out[i] = Type::round(sum[i]);
    }
  }
}

using SendKernel = void (*)(SendMessagesArgs);
SendKernel send_kernel_of(DType dtype, LowLatencyCast cast) {
  if (cast == LowLatencyCast::kNone) {
    return send_messages_kernel<PlainRow>;
  }
  return with_cast_type(dtype, [](auto type) -> SendKernel {
    return send_messages_kernel<CastPart<decltype(type)>>;
  });
}

using ReturnKernel = void (*)(ReturnRowsArgs);
ReturnKernel return_kernel_of(DType dtype, bool is_coded) {
  if (!is_coded) {
    return return_rows_kernel<BF16, false>;  // copies bytes of any type
  }
  return with_row_type(
      dtype, [](auto type) -> ReturnKernel { return return_rows_kernel<decltype(type), true>; });
}

using SumKernel = void (*)(SumReturnedArgs);
SumKernel sum_kernel_of(DType dtype, bool is_coded) {
  return with_row_type(dtype, [&](auto type) -> SumKernel {
    return is_coded ? sum_coded_kernel<decltype(type)> : sum_returned_kernel<decltype(type)>;
  });
}

void set_bytes(void* to, int value, int64_t bytes, const Stream& stream) {
  cuda::check_cuda(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), cuda::as_stream(stream)),
                   "cudaMemsetAsync");
}

}  // namespace

void load_message_kernels(int device, DType dtype) {
  cuda::load_kernels(device, send_kernel_of(dtype, LowLatencyCast::kNone),
                     send_kernel_of(dtype, LowLatencyCast::kFp8), number_selections_kernel,
                     copy_messages_kernel, return_kernel_of(dtype, false),
                     return_kernel_of(dtype, true), find_places_kernel, sum_kernel_of(dtype, false),
                     sum_kernel_of(dtype, true));
}

void launch_send_messages(const SendMessagesArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  send_kernel_of(
      args.dtype,
      args.cast)<<<grid_for(args.num_tokens), kThreads, 0, cuda::as_stream(stream)>>>(args);
  cuda::check_launch("send_messages_kernel");
}

void launch_unpack(const UnpackArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  const cudaStream_t to = cuda::as_stream(stream);
  const int64_t num_messages = args.boxes.num_messages();
  set_bytes(args.rows, 0xff, 4 * num_messages * args.boxes.topk, stream);
  number_selections_kernel<<<static_cast<unsigned>(args.num_local + args.boxes.num_ranks), kThreads,
                             0, to>>>(args);
  cuda::check_launch("number_selections_kernel");
  copy_messages_kernel<<<grid_for(num_messages), kThreads, 0, to>>>(args);
  cuda::check_launch("copy_messages_kernel");
}

void launch_return_rows(const ReturnRowsArgs& args, const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  return_kernel_of(
      args.dtype,
      args.returned
          .is_coded)<<<grid_for(args.boxes.num_messages()), kThreads, 0, cuda::as_stream(stream)>>>(
      args);
  cuda::check_launch("return_rows_kernel");
}

void launch_sum_returned(const SumReturnedArgs& args, const Stream& stream) {
  if (args.num_tokens == 0) {
    return;
  }
  const cuda::DeviceGuard guard(stream);
  const cudaStream_t to = cuda::as_stream(stream);
  set_bytes(args.places, 0, 8 * int64_t{args.num_tokens} * args.boxes.topk, stream);
  const int64_t most = *std::max_element(args.num_rows, args.num_rows + args.boxes.num_ranks);
  find_places_kernel<<<dim3(static_cast<unsigned>(
                                std::max<int64_t>(1, (most + kThreads - 1) / kThreads)),
                            static_cast<unsigned>(args.boxes.num_ranks)),
                       kThreads, 0, to>>>(args);
  cuda::check_launch("find_places_kernel");
  const int64_t items = args.returned.is_coded
                            ? int64_t{args.num_tokens} * (args.boxes.hidden / logfmt::kGroup)
                            : int64_t{args.num_tokens};
  sum_kernel_of(args.dtype, args.returned.is_coded)<<<grid_for(items), kThreads, 0, to>>>(args);
  cuda::check_launch("sum_returned_kernel");
}

}  // namespace moebius::comm
