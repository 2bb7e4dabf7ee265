// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Launchers of the kernels that choose experts.  All pointers are to memory of the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/slot_order.h"
#include "core/ids.h"
#include "moebius/router.h"

namespace moebius::router {

inline constexpr int64_t kMaxCudaExperts = 1024;  // a warp holds a token's logits in registers

struct SelectArgs {
  const float* logits;  // [T, E]
  int64_t num_tokens;
  int num_experts;
  int topk;
  int num_groups;
  int topk_groups;
  Scoring scoring;
  bool score_after_topk;
  bool renormalize;
  float routed_scaling_factor;
  float mixer_epsilon;           // kSparseMixer only
  const float* correction_bias;  // [E] or nullptr
  const float* expert_scale;     // [E] or nullptr
  IdsOut ids;                    // [T, K]
  float* weights;                // [T, K]
  // These arguments make a SlotOrder of these ids, which the kernel then also does; without
  // row_of_slot no order is made.
  SlotSort order = {};

  MOEBIUS_HOST_DEVICE bool orders() const { return order.row_of_slot != nullptr; }
};
// REQUIRES: can_order(), or there is no order to make.
void launch_select(const SelectArgs& args, cudaStream_t stream);
// Whether the kernel can make such an order.
bool can_order(const SelectArgs& args);

}  // namespace moebius::router
