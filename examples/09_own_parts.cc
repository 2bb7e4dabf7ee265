// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Own parts: a layer whose experts and whose prepare/finalize are the caller's.  Everything that
// they need is in the public headers.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "moebius/moe_layer.h"

namespace {

using namespace moebius;

constexpr int64_t kTokens = 6, kExperts = 4, kTopk = 2, kHidden = 8;

// Expert e multiplies its rows by e + 1.
class ScalingExperts final : public Experts {
 public:
  explicit ScalingExperts(const ExpertsDesc& desc)
      : Experts({.name = "scaling", .weight_and_reduce = WeightAndReduceKind::kContiguous}),
        desc_(desc) {}

  const ExpertsDesc& desc() const override { return desc_; }
  const QuantConfig& quant() const override { return quant_; }
  ExpertsWorkspace workspace(int64_t rows) const override {
    return {.intermediate = {0}, .output = {rows, kTopk, kHidden}, .dtype = DType::kF32};
  }
  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& /*intermediate*/,
             const Tensor& /*scratch*/,
             const Stream& /*stream*/) const override {
    // Ids have the type that the call has given.
    const Tensor& ids = input.topk_ids;
    const bool is_wide = ids.dtype() == DType::kI64;
    for (int64_t i = 0; i < output.numel(); ++i) {
      const int64_t row = i / kHidden / kTopk;
      const int64_t slot = i / kHidden;
      const int64_t expert = is_wide ? ids.data<int64_t>()[slot] : ids.data<int32_t>()[slot];
      output.data<float>()[i] =
          input.x.data<float>()[row * kHidden + i % kHidden] * static_cast<float>(expert + 1);
    }
  }

 private:
  ExpertsDesc desc_;
  QuantConfig quant_;  // nothing is quantized
};

// Tokens stay on this rank; a real one would send them to the ranks of their experts.  The library
// weights and sums the rows.
class StayHere final : public PrepareFinalize {
 public:
  StayHere() : PrepareFinalize({.name = "stay_here"}) {}

  Support accepts(WeightAndReduceKind kind) const override {
    return kind == WeightAndReduceKind::kContiguous ? Support::yes()
                                                    : Support::no("it reduces [M, K, H] only");
  }
  Support accepts(const QuantConfig& quant, bool /*defer_input_quant*/) const override {
    return quant.is_quantized() ? Support::no("it quantizes nothing") : Support::yes();
  }
  PrepareResult prepare(const PrepareInput& input, const CallContext& /*context*/) override {
    PrepareResult result;  // ids and weights of the call hold
    result.x = input.hidden;
    return result;
  }
  void finalize(const FinalizeInput& input, const CallContext& context) override {
    input.weight_and_reduce->apply({input.expert_output, input.topk_weights, input.topk_ids},
                                   input.output, context.stream);
  }
};

}  // namespace

int main() {
  MoeLayerWeights weights;  // there are none: the parts have what they need
  weights.config = {.num_experts = kExperts,
                    .experts_per_token = kTopk,
                    .hidden = kHidden,
                    .intermediate = 1,
                    .in_dtype = DType::kF32};
  ExpertsDesc desc;
  desc.num_experts = desc.num_local_experts = kExperts;
  desc.topk = kTopk;
  desc.hidden = kHidden;
  desc.in_dtype = DType::kF32;
  MoeLayerParts parts;
  parts.experts = std::make_unique<ScalingExperts>(desc);
  parts.prepare_finalize = std::make_unique<StayHere>();
  MoeLayer layer(weights, MoeLayerOptions(), Stream(), nullptr, std::move(parts));

  // Token t goes to experts t and t + 1 (modulo 4), with weights 0.25 and 0.5.
  MoeLayerInput input;
  input.hidden = Tensor::empty({kTokens, kHidden}, DType::kF32);
  input.topk_ids = Tensor::empty({kTokens, kTopk}, DType::kI64);
  input.topk_weights = Tensor::empty({kTokens, kTopk}, DType::kF32);
  for (int64_t i = 0; i < input.hidden.numel(); ++i) {
    input.hidden.data<float>()[i] = static_cast<float>(i);
  }
  for (int64_t i = 0; i < kTokens * kTopk; ++i) {
    input.topk_ids.data<int64_t>()[i] = (i / kTopk + i % kTopk) % kExperts;
    input.topk_weights.data<float>()[i] = i % kTopk == 0 ? 0.25f : 0.5f;
  }
  const Tensor output = Tensor::empty(input.hidden.shape(), DType::kF32);
  WorkspacePool workspaces;
  CallContext context;
  context.workspaces = &workspaces;
  layer.forward(input, output, context);

  for (int64_t i = 0; i < output.numel(); ++i) {
    const int64_t token = i / kHidden;
    const float factor = 0.25f * static_cast<float>(token % kExperts + 1) +
                         0.5f * static_cast<float>((token + 1) % kExperts + 1);
    const float expected = factor * static_cast<float>(i);
    if (std::abs(output.data<float>()[i] - expected) > 1e-5f * expected) {
      std::printf("output[%d] is %g, expected %g\n", static_cast<int>(i),
                  static_cast<double>(output.data<float>()[i]), static_cast<double>(expected));
      return 1;
    }
  }
  std::printf("%d tokens by experts %s, brought there by %s\n", static_cast<int>(kTokens),
              std::string(layer.kernel().experts().name()).c_str(),
              std::string(layer.kernel().prepare_finalize().name()).c_str());
  return 0;
}
