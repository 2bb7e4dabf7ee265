// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/device/grid.cuh"
#include "comm/device/sum_copies.cuh"
#include "comm/high_throughput/cuda/node_rows.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

// A warp per token.
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;

__device__ int64_t first_token() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
}
__device__ int64_t token_stride() {
  return int64_t{gridDim.x} * kWarps;
}

__device__ void copy_routing(
    const CopyRowsArgs& args, int64_t token, int d, std::byte* field[3], int lane) {
  const IdsOut ids{reinterpret_cast<int32_t*>(field[0]), args.ids.words_per_id};
  auto* weights = reinterpret_cast<float*>(field[1]);
  for (int k = lane; k < args.topk; k += kWarpLanes) {
    int32_t id = args.ids[token * args.topk + k];
    bool is_here = true;
    if (args.rank_of != nullptr) {
      is_here = id >= 0 && id < args.num_experts && args.rank_of[id] == args.first_rank + d;
      id = is_here ? args.local_of[id] : -1;
    }
    ids.set(k, id);
    if (args.weights != nullptr) {
      weights[k] = is_here ? args.weights[token * args.topk + k] : 0.0f;
    }
  }
  if (!args.ids && args.rank_of == nullptr) {  // a message, of which a gateway makes its route
    copy_plain(field[0], reinterpret_cast<const std::byte*>(args.is_in) + token * args.num_ranks,
               args.num_ranks, lane);
  }
  if (lane == 0) {
    *reinterpret_cast<int32_t*>(field[2]) =
        args.tokens != nullptr ? args.tokens[token] : static_cast<int32_t>(token);
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const __grid_constant__ CopyRowsArgs args) {
  const CopyIndex& copies = args.copies;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int64_t token = first_token(); token < copies.num_tokens; token += token_stride()) {
    for (int d = 0; d < copies.num_destinations; ++d) {
      const int32_t place = copies.index[token * copies.stride + d];
      if (place < 0) {
        continue;
      }
      const int64_t row = args.first_row[d] + place;
      std::byte* at = args.block[d];
      if (at == nullptr || row >= args.block_rows[d]) {
        continue;  // the route did not come, since the exchange was given up
      }
      std::byte* routing[3];
      for (int f = 0; f < args.num_fields; ++f) {
        const int64_t bytes = args.field_bytes[f];
        if (f < args.num_payloads) {
          copy_plain(at + row * bytes, args.source[f] + token * bytes, bytes, lane);
        } else {
          routing[f - args.num_payloads] = at + row * bytes;
        }
        at += field_span(bytes, args.block_rows[d]);
      }
      if (args.num_fields > args.num_payloads) {
        copy_routing(args, token, d, routing, lane);
      }
    }
  }
}

template <typename Type>
__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const __grid_constant__ SumRowsArgs args) {
  __shared__ const std::byte* rows_of[kWarps][kMaxCudaRanks + 2];
  __shared__ const float* weights_of[kWarps][kMaxCudaRanks];
  const CopyIndex& copies = args.copies;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const std::byte** rows = rows_of[threadIdx.x / kWarpLanes];
  const float** weights = weights_of[threadIdx.x / kWarpLanes];
  for (int64_t token = first_token(); token < copies.num_tokens; token += token_stride()) {
    const int64_t out = args.out_index != nullptr ? args.out_index[token * args.out_stride] : token;
    if (out < 0) {
      continue;
    }
    int num_rows = 0;
    for (int d = 0; d < copies.num_destinations; ++d) {
      const int64_t place = copies.index[token * copies.stride + d];
      if (place < 0) {
        continue;
      }
      if (lane == 0) {
        rows[num_rows] = args.rows[d] + place * args.row_bytes;
        weights[num_rows] = args.weights[d] + place * args.topk;
      }
      ++num_rows;
    }
    const int num_copies = num_rows;
    for (const std::byte* bias : args.bias) {
      if (bias != nullptr) {
        if (lane == 0) {
          rows[num_rows] = bias + token * args.row_bytes;
        }
        ++num_rows;
      }
    }
    __syncwarp();
    sum_rows<Type, false>(rows, num_rows, nullptr, args.row_bytes, args.is_aligned,
                          args.out + out * args.row_bytes, lane);
    if (args.out_weights != nullptr) {
      for (int k = lane; k < args.topk; k += kWarpLanes) {
        float sum = 0.0f;
        for (int i = 0; i < num_copies; ++i) {
          sum += weights[i][k];
        }
        args.out_weights[out * args.topk + k] = sum;
      }
    }
    __syncwarp();
  }
}

unsigned grid_for(int64_t num_tokens, int num_blocks) {
  return static_cast<unsigned>(std::min<int64_t>((num_tokens + kWarps - 1) / kWarps, num_blocks));
}

using SumKernel = void (*)(SumRowsArgs);
SumKernel sum_kernel_of(DType dtype) {
  return with_row_type(dtype,
                       [](auto type) -> SumKernel { return sum_rows_kernel<decltype(type)>; });
}

}  // namespace

void load_node_kernels(int device) {
  cuda::load_kernels(device, copy_rows_kernel, sum_kernel_of(DType::kF32),
                     sum_kernel_of(DType::kF16), sum_kernel_of(DType::kBF16));
}

void launch_copy_rows(const CopyRowsArgs& args, int num_blocks, const Stream& stream) {
  if (args.copies.num_tokens == 0 || args.copies.num_destinations == 0) {
    return;
  }
  const cuda::DeviceGuard guard(stream);
  copy_rows_kernel<<<grid_for(args.copies.num_tokens, num_blocks), kThreads, 0,
                     cuda::as_stream(stream)>>>(args);
  cuda::check_launch("copy_rows_kernel");
}

void launch_sum_rows(const SumRowsArgs& args, int num_blocks, const Stream& stream) {
  if (args.copies.num_tokens == 0) {
    return;
  }
  const cuda::DeviceGuard guard(stream);
  sum_kernel_of(args.dtype)<<<grid_for(args.copies.num_tokens, num_blocks), kThreads, 0,
                              cuda::as_stream(stream)>>>(args);
  cuda::check_launch("sum_rows_kernel");
}

}  // namespace moebius::comm
