// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Routers of models that tests and benchmarks share.
#pragma once

#include <cstdint>

#include "moebius/router.h"

namespace moebius {

inline RouterConfig deepseek_v3_router(int64_t num_experts = 256, int64_t topk = 8) {
  return {.num_experts = num_experts,
          .topk = topk,
          .scoring = Scoring::kSigmoid,
          .renormalize = true,
          .num_groups = 8,
          .topk_groups = 4,
          .routed_scaling_factor = 2.5f};
}

}  // namespace moebius
