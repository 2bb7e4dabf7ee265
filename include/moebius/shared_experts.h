// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedExperts: the dense MLP that every token passes beside its routed experts.  Qwen2-MoE scales
// its result per token by sigmoid(gate . x).
// Made from Experts, it is one expert that gets every row, so it runs on the same implementations
// as the routed ones.  It uses the batched format, in which rows need no permutation and get no
// router weight.  Made from a function of the caller, it is whatever that function computes.
// Letters: T tokens, H hidden, L local experts, E experts, K top-k.
// Thread-safety: forward() is const; concurrent calls need different streams and workspaces.  No
// forward() may run during update_weights().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "moebius/api.h"
#include "moebius/experts.h"
#include "moebius/prepare_finalize.h"
#include "moebius/quantize.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

struct SharedExpertsInput {
  Tensor hidden;  // [T, H]
  // hidden as quant_spec() quantizes it, if the caller has that already; optional.
  Tensor x = {};
  Tensor x_scale = {};
  int64_t chunk_tokens = 0;  // the most rows per pass; 0: as the object was made
};

// Sets output [T, H] from hidden [T, H].  Both have the dtype in which the routed experts take
// hidden states, and do not overlap.  A call may bring any number of tokens, none included, and on
// a GPU the function enqueues on context.stream and does not wait.  Workspaces of context are its
// own in the slot kShared.
using SharedExpertsFunction =
    std::function<void(const Tensor& hidden, const Tensor& output, const CallContext& context)>;

class SharedExperts {
 public:
  // experts: L = E = K = 1, batched format.  gate [1, H] f32, bf16 or f16, or undefined.
  // chunk_tokens: the most rows per pass through the experts; 0: setting MOEBIUS_CHUNK_TOKENS
  // (default 32768).  Throws InvalidArgument where these do not fit, and for experts whose calls
  // bring scales of GEMM2's rows (QuantDesc::calls_bring_scales).
  // The gate is copied unless nobody else holds it.
  SharedExperts(std::unique_ptr<Experts> experts, Tensor gate, int64_t chunk_tokens = 0);
  // Throws InvalidArgument for an empty function.
  explicit SharedExperts(SharedExpertsFunction function);

  // hidden [T, H] -> output [T, H], both in experts()->desc().in_dtype; they must not overlap.
  // Throws InvalidArgument (shape, dtype, no workspaces) and whatever the experts throw.
  void forward(const SharedExpertsInput& input,
               const Tensor& output,
               const CallContext& context) const;
  // How hidden is quantized before the experts get it; nullopt: it is not.
  const std::optional<QuantizeSpec>& quant_spec() const { return quant_spec_; }
  const Experts* experts() const { return experts_.get(); }  // null: made from a function

  // See Experts::update_weights(); the gate is replaced likewise, and may be left out.  Throws
  // Unsupported for a function.
  void update_weights(const ExpertWeights& weights, const Tensor& gate, const Stream& stream);
  void expect_update(const ExpertWeights& weights, const Tensor& gate) const;

 private:
  std::unique_ptr<Experts> experts_;
  SharedExpertsFunction function_;
  Tensor gate_;
  int64_t chunk_tokens_;
  std::optional<QuantizeSpec> quant_spec_;
};

}  // namespace moebius
