// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Chooses the kernel that computes logits in the stated order.  Why none of these uses tensor
// cores: they round sums in their own way, so tokens would be routed differently on different
// machines.
#include "router/cuda/logits.h"

#include "core/cuda/device.h"

namespace moebius::router {

namespace {

// Up to so many logits per SM (six tiles of 256) count as few.  Beyond that the kernel for many
// tokens is at least as fast.
constexpr int64_t kFewLogitsPerSm = 1536;

bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

bool has_aligned_rows(const LogitsArgs& args) {
  return args.depth % 8 == 0 && is_aligned(args.hidden) && is_aligned(args.gate);
}

void launch_logits(const LogitsArgs& args, int index, cudaStream_t stream) {
  if (args.num_tokens == 0) {
    return;
  }
  const bool is_few = args.num_tokens * args.num_experts <= kFewLogitsPerSm * cuda::num_sms(index);
  if (is_few && has_aligned_rows(args) && args.hidden_dtype == args.gate_dtype &&
      args.hidden_dtype != DType::kF32) {
    launch_few_logits(args, index, stream);
  } else {
    launch_many_logits(args, index, stream);
  }
}

}  // namespace moebius::router
