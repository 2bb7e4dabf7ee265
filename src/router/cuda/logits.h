// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Launchers of the kernels that compute logits.  All pointers are to memory of the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/fetch_ahead.h"
#include "moebius/dtype.h"

namespace moebius::router {

struct LogitsArgs {
  const void* hidden;  // [T, H]
  DType hidden_dtype;
  const void* gate;  // [E, H]
  DType gate_dtype;
  const float* bias;  // [E]
  int64_t num_tokens;
  int64_t num_experts;
  int64_t depth;  // H
  float* out;     // [T, E]
  // The kernel of few tokens fetches this for the kernels that follow; the others fetch nothing.
  cuda::FetchAhead fetch = {};
};
// Whether rows can be loaded in units of 16 bytes.
bool has_aligned_rows(const LogitsArgs& args);
// In all of these `index` is the current device.  launch_logits() chooses one of the next two.
void launch_logits(const LogitsArgs& args, int index, cudaStream_t stream);
// For many tokens and any operands.
void launch_many_logits(const LogitsArgs& args, int index, cudaStream_t stream);
// For few tokens.  REQUIRES: rows are aligned, and both operands are bf16 or both are f16.
void launch_few_logits(const LogitsArgs& args, int index, cudaStream_t stream);

inline constexpr int64_t kTensorDepth = 8;  // the depth must be a multiple for tensor cores
// LogitSums::kTensorCores.  REQUIRES: rows are at multiples of 16 bytes, and both operands are
// bf16.
void launch_tensor_logits(const LogitsArgs& args, int index, cudaStream_t stream);

}  // namespace moebius::router
