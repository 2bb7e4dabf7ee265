// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedExperts: the dense MLP that every token passes beside its routed experts.  Qwen2-MoE scales
// its result per token by sigmoid(gate . x).
// It is one expert that gets every row, so it runs on the same implementations as the routed ones.
// It uses the batched format, in which rows need no permutation and get no router weight.
// Letters: T tokens, H hidden, L local experts, E experts, K top-k.
// Thread-safety: forward() is const; concurrent calls need different streams and workspaces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/api.h"
#include "moebius/experts.h"
#include "moebius/prepare_finalize.h"
#include "moebius/quantize.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

class SharedExperts {
 public:
  // experts: L = E = K = 1, batched format.  gate [1, H] f32, bf16 or f16, or undefined.
  // chunk_tokens: the most rows per pass through the experts; 0: setting MOEBIUS_CHUNK_TOKENS
  // (default 32768).  Throws InvalidArgument where these do not fit.
  SharedExperts(std::unique_ptr<Experts> experts, Tensor gate, int64_t chunk_tokens = 0);

  // hidden [T, H] -> output [T, H], both in experts().desc().in_dtype; they must not overlap.
  // x, x_scale: hidden as quant_spec() quantizes it, if the caller has that already; optional.
  // Throws InvalidArgument (shape, dtype, no workspaces) and whatever the experts throw.
  void forward(const Tensor& hidden,
               const Tensor& output,
               const CallContext& context,
               const Tensor& x = {},
               const Tensor& x_scale = {}) const;
  // How hidden is quantized before the experts get it; nullopt: it is not.
  const std::optional<QuantizeSpec>& quant_spec() const { return quant_spec_; }
  const Experts& experts() const { return *experts_; }

 private:
  std::unique_ptr<Experts> experts_;
  Tensor gate_;
  int64_t chunk_tokens_;
  std::optional<QuantizeSpec> quant_spec_;
};

}  // namespace moebius
