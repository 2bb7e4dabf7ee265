// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the host hands to the kernels of sm90_kernel.cuh.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace moebius::cuda::sm90 {

inline constexpr int kBlockBytes = 128;  // of K, in one stage: the width of TMA's swizzle
inline constexpr int kBoxRowsA = 32;
inline constexpr int kBoxRowsB = 128;
inline constexpr int kMaxGroups = 1024;

struct Args {
  CUtensorMap a;  // [num_rows, K], boxes of kBoxRowsA x kBlockBytes
  CUtensorMap b;  // [G, N, K], boxes of 1 x kBoxRowsB x kBlockBytes
  const float* a_scale;
  const float* b_scale;
  const float* bias;  // nullptr: none
  void* out;
  const int32_t* offsets;  // one of the two
  const int32_t* counts;
  int* next_item;  // nullptr, or two zeros, which is what they are again afterwards
  int max_rows;    // per group, with counts
  int num_rows;    // of a
  int num_groups;
  int n;
  int k;
};

// On the current device, which is `index`, on at most num_sms SMs (but no less than two).
void launch(
    const Args& args, bool is_fp8, bool to_f32, int num_sms, int index, cudaStream_t stream);

}  // namespace moebius::cuda::sm90
