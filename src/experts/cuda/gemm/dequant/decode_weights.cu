// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel is bound by memory: an element of 4-bit codes moves 2.5 bytes.
#include <algorithm>
#include <bit>

#include "core/cuda/check.h"
#include "experts/cuda/gemm/dequant/decode.cuh"
#include "experts/cuda/gemm/dequant/decode_weights.h"
#include "experts/cuda/rows/row_groups.cuh"
#include "quant/decoded_room.h"
#include "quant/group_rule.h"

namespace moebius::cuda {

namespace {

// A block has kAcross threads for the vectors of a row, and kDown rows.  It is as large as it may
// be, since with a limit of SMs each of them has one block.
constexpr int kAcross = 64;
constexpr int kDown = 16;
constexpr int kBlocksPerSm = 2;
constexpr int kHeld = 4;  // vectors of a row that a thread requests at once

// Decodes a group by a row of blocks, to elements of T.
template <typename T, Code kCode, bool kIsPacked>
__device__ __forceinline__ void decode_group(const DecodeArgs& p,
                                             int group,
                                             int slot,
                                             int scale_slot) {
  const int step = static_cast<int>(gridDim.x) * kDown;
  const int num_vectors = p.k / kVector;
  const auto* byte_of_block = p.folds ? static_cast<const uint8_t*>(p.w.scale) : p.w.zero_point;
  for (int n = static_cast<int>(blockIdx.x * kDown + threadIdx.y); n < p.n; n += step) {
    const uint8_t* codes = p.w.values + (int64_t{group} * p.n + n) * p.w.row_bytes;
    auto* out = reinterpret_cast<uint4*>(static_cast<T*>(p.out) + (int64_t{slot} * p.n + n) * p.k);
    const int64_t first_scale = scale_row(p.w, group, n);
    if (threadIdx.x == 0) {
      p.column_scale[int64_t{scale_slot} * p.n + n] = decoded_column_scale(p, group, n);
    }
    for (int block = static_cast<int>(threadIdx.x); block < p.num_blocks; block += kAcross) {
      p.block_scale[(int64_t{scale_slot} * p.num_blocks + block) * p.n + n] =
          weight_scale(p.w, first_scale + block);
    }
    for (int first = static_cast<int>(threadIdx.x); first < num_vectors; first += kHeld * kAcross) {
      uint64_t held[kHeld];
      uint8_t of_block[kHeld] = {};
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int vector = min(first + h * kAcross, num_vectors - 1);
        held[h] = quant::device::load_codes(
            kCode, codes + int64_t{vector} * quant::device::vector_bytes(kCode));
        if (byte_of_block != nullptr) {
          of_block[h] =
              byte_of_block[first_scale + __umulhi(static_cast<uint32_t>(vector), p.block_inverse)];
        }
      }
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        if (first + h * kAcross < num_vectors) {
          out[first + h * kAcross] = decode_vector<T, kCode, kIsPacked>(
              held[h], zero_point_of(p, of_block[h]), scale_of(p, of_block[h]));
        }
      }
    }
  }
}

// blockIdx.y counts groups from `first_group` on, and slots.
template <typename T, Code kCode, bool kIsPacked>
__global__ void __launch_bounds__(kAcross* kDown)
    decode_kernel(const __grid_constant__ DecodeArgs p, RowGroups rows, int first_group) {
  const int slot = static_cast<int>(blockIdx.y);
  const int group = first_group + slot;
  const RowSpan span = group_rows(rows, group);
  if (span.begin < span.end) {
    decode_group<T, kCode, kIsPacked>(p, group, slot, slot);
  }
}

// Decodes the first group that has rows, to slot 0, and clears the counters of a GEMM that decodes
// the others.
template <Code kCode, bool kIsPacked>
__global__ void __launch_bounds__(kAcross* kDown) decode_first_kernel(
    const __grid_constant__ DecodeArgs p, RowGroups rows, int* counters, int num_counters) {
  if (blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.y * kAcross + threadIdx.x); i < num_counters;
         i += kAcross * kDown) {
      counters[i] = 0;
    }
  }
  for (int group = 0; group < rows.num_groups; ++group) {
    const RowSpan span = group_rows(rows, group);
    if (span.begin < span.end) {
      decode_group<BFloat16, kCode, kIsPacked>(p, group, 0, group);
      return;
    }
  }
}

// Calls fn with the code and with whether it is packed, both as types.
template <typename Fn>
void visit_codes(const WeightArgs& w, const Fn& fn) {
  if (w.is_packed) {
    fn(quant::Constant<Code::kE2M1>{}, std::true_type{});
  } else {
    quant::visit_code(w.code, [&](auto code) { fn(code, std::false_type{}); });
  }
}

}  // namespace

DecodeArgs decode_args(const ExpertGemm& gemm, const GroupedGemm& out) {
  const WeightOperand& w = *gemm.w;
  DecodeArgs args{};
  args.w = weight_args(w);
  args.a = row_args(gemm.a);
  args.folds = quant::scaled_codes_fit(*w.quant.format, out.b.dtype());
  args.num_blocks = static_cast<int>(decoded_blocks(facts_of(w), out.b.dtype()));
  const int64_t of_block = (int64_t{args.w.group_cols} + kVector - 1) / kVector;
  args.block_inverse = static_cast<uint32_t>(((int64_t{1} << 32) + of_block - 1) / of_block);
  args.block_shift = std::bit_width(static_cast<uint64_t>(of_block)) - 1;
  args.out = out.b.raw();
  args.column_scale = out.column_scale.data<float>();
  args.block_scale = out.b_scale ? out.b_scale.data<float>() : nullptr;
  args.n = static_cast<int>(out.b.dim(1));
  args.k = static_cast<int>(out.b.dim(2));
  return args;
}

void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const GroupedGemm& out,
                    const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const DecodeArgs args = decode_args(gemm, out);
  const int64_t groups = out.b.dim(0);
  const int64_t across = blocks_of(gemm, kBlocksPerSm, index) / groups;
  const int64_t needed = (args.n + kDown - 1) / kDown;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(across, 1, needed)),
                  static_cast<unsigned>(groups));
  visit_codes(args.w, [&](auto code, auto is_packed) {
    constexpr Code kCode = decltype(code)::value;
    auto kernel = decode_kernel<BFloat16, kCode, decltype(is_packed)::value>;
    if constexpr (!decltype(is_packed)::value) {
      kernel = out.b.dtype() == DType::kF16 ? decode_kernel<Float16, kCode, false> : kernel;
    }
    kernel<<<grid, dim3(kAcross, kDown), 0, as_stream(on.native_handle())>>>(
        args, gemm.rows, static_cast<int>(first));
  });
  check_launch("decode_kernel");
}

void decode_first_group(const ExpertGemm& gemm, const GroupedGemm& out, const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const DecodeArgs args = decode_args(gemm, out);
  const int64_t needed = (args.n + kDown - 1) / kDown;
  const auto blocks = static_cast<unsigned>(std::min(blocks_of(gemm, kBlocksPerSm, index), needed));
  visit_codes(args.w, [&](auto code, auto is_packed) {
    decode_first_kernel<decltype(code)::value, decltype(is_packed)::value>
        <<<blocks, dim3(kAcross, kDown), 0, as_stream(on.native_handle())>>>(
            args, gemm.rows, out.decode_counters.data<int>(),
            static_cast<int>(out.decode_counters.numel()));
  });
  check_launch("decode_first_kernel");
}

}  // namespace moebius::cuda
