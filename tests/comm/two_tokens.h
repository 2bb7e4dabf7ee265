// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What each of four ranks with an expert each brings to low latency: two tokens of ones.  Token 0
// has the experts 0 and 1, token 1 the experts 2 and 3, and all weights are 1.
#pragma once

#include <cstdint>

#include "moebius/low_latency.h"
#include "moebius/tensor.h"

namespace moebius::testing {

struct TwoTokens {
  Tensor x = Tensor::zeros({2, 128}, DType::kF32);
  Tensor ids = Tensor::zeros({2, 2}, DType::kI32);
  Tensor weights = Tensor::zeros({2, 2}, DType::kF32);
  LowLatencyOptions options = {
      .max_tokens = 4, .hidden = 128, .topk = 2, .in_dtype = DType::kF32, .excludes_missing = true};

  TwoTokens() {
    for (int64_t i = 0; i < ids.numel(); ++i) {
      ids.data<int32_t>()[i] = static_cast<int32_t>(i);
      set_float(weights, i, 1);
    }
    for (int64_t i = 0; i < x.numel(); ++i) {
      set_float(x, i, 1);
    }
  }
};

}  // namespace moebius::testing
