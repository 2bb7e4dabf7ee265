// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedExperts: the dense MLP every token passes beside its routed experts, optionally scaled per
// token by sigmoid(gate . x) (Qwen2-MoE).  It is one expert that has every row, so it runs on the
// same implementations as the routed ones, in the batched format: there rows stay where they are,
// and nobody weights them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/experts.h"
#include "moebius/prepare_finalize.h"
#include "moebius/quantize.h"
#include "moebius/tensor.h"

namespace moebius {

class SharedExperts {
 public:
  // experts: L = E = K = 1, batched format.  gate [1, H] or undefined.  chunk_tokens: rows per
  // pass through the experts; 0: setting MOEBIUS_CHUNK_TOKENS (default 32768).
  SharedExperts(std::unique_ptr<Experts> experts, Tensor gate, int64_t chunk_tokens = 0);

  // hidden [T, H] -> output [T, H], both in desc().in_dtype; must not overlap.
  // x, x_scale: hidden quantized as quant_spec() says, where the caller has that; optional.
  void forward(const Tensor& hidden,
               const Tensor& output,
               const CallContext& context,
               const Tensor& x = {},
               const Tensor& x_scale = {}) const;
  // What becomes of hidden before the experts get it; nullopt: nothing.
  const std::optional<QuantizeSpec>& quant_spec() const { return quant_spec_; }
  const Experts& experts() const { return *experts_; }

 private:
  std::unique_ptr<Experts> experts_;
  Tensor gate_;
  int64_t chunk_tokens_;
  std::optional<QuantizeSpec> quant_spec_;
};

}  // namespace moebius
