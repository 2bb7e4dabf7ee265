// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ReducingPrepareFinalize: the common part of the backends that weight and reduce rows on the rank
// that has computed them, before anything travels back.
#pragma once

#include <memory>
#include <utility>

#include "layer/prepare_finalize/prepare_rows.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

class ReducingPrepareFinalize : public PrepareFinalize {
 public:
  Support accepts(WeightAndReduceKind kind) const override;
  Support accepts(const QuantConfig& quant, bool defer_input_quant) const override {
    return rows_quant_supported(quant, defer_input_quant, num_scales_);
  }

 protected:
  // num_scales: see rows_quant_supported().
  explicit ReducingPrepareFinalize(PrepareFinalizeTraits own, int64_t num_scales = 1)
      : PrepareFinalize(std::move(own)), num_scales_(num_scales) {}

  // Weights and reduces input.expert_output into `output` by the experts' strategy.  If they
  // delegate, the strategy is contiguous or naive batched, by the format.  Throws InvalidArgument
  // without a strategy.
  void reduce(const FinalizeInput& input, const Tensor& output, const Stream& stream) const;
  // The reduced rows [num_rows, W] that travel back: expert_output itself if it is final, otherwise
  // a workspace.
  Tensor reduced_rows(const FinalizeInput& input,
                      int64_t num_rows,
                      const CallContext& context) const;

 private:
  bool is_batched() const { return traits().activation_format == ActivationFormat::kBatched; }

  int64_t num_scales_;
  std::unique_ptr<WeightAndReduce> when_delegated_ = make_weight_and_reduce(
      is_batched() ? WeightAndReduceKind::kNaiveBatched : WeightAndReduceKind::kContiguous);
};

}  // namespace moebius
