// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank, standard format: nothing travels, so prepare only weights and quantizes.
#include "layer/prepare_finalize/prepare_rows.h"
#include "layer/rows/reduce_rows.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

namespace {

class NoEp final : public PrepareFinalize {
 public:
  NoEp() : PrepareFinalize({.name = "no_ep", .takes_final_output = true}) {}

  Support accepts(WeightAndReduceKind kind) const override {
    return kind == WeightAndReduceKind::kNaiveBatched
               ? Support::no("naive batched reduces batched rows, these are standard")
               : Support::yes();
  }
  Support accepts(const QuantConfig& quant, bool defer_input_quant) const override {
    return rows_quant_supported(quant, defer_input_quant, /*num_scales=*/1);
  }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    expect_prepare_input(input, context);
    PrepareResult result;
    result.x = weighted_input(input, context);
    if (const auto spec = rows_quant_spec(input)) {
      const QuantizedRows rows = quantize_to_workspace(result.x, *spec, input.quant->a1, context);
      result.x = rows.values;
      result.x_scale = rows.scale;
    }
    return result;
  }

  void finalize(const FinalizeInput& input, const CallContext& context) override {
    reduce_rows(input, *contiguous_, input.output, context.stream);
  }

 private:
  std::unique_ptr<WeightAndReduce> contiguous_ =
      make_weight_and_reduce(WeightAndReduceKind::kContiguous);
};

}  // namespace

std::unique_ptr<PrepareFinalize> make_no_ep() {
  return std::make_unique<NoEp>();
}

}  // namespace moebius
