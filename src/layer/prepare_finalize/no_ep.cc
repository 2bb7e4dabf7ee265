// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank, standard format: nothing travels, so prepare only weights and quantizes the tokens.
#include "layer/prepare_finalize/reducing.h"

namespace moebius {

namespace {

class NoEp final : public ReducingPrepareFinalize {
 public:
  NoEp() : ReducingPrepareFinalize({.name = "no_ep", .takes_final_output = true}) {}

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    expect_prepare_input(input, context);
    expect_extras(input, traits());
    PrepareResult result;
    result.x = weighted_input(input, context);
    if (const auto spec = rows_quant_spec(input)) {
      const QuantizedRows rows = quantize_to_workspace(result.x, {*spec, input.quant->a1}, context);
      result.x = rows.values;
      result.x_scale = rows.scale;
    }
    return result;
  }

  void finalize(const FinalizeInput& input, const CallContext& context) override {
    reduce(input, input.output, context.stream);
  }
};

}  // namespace

std::unique_ptr<PrepareFinalize> make_no_ep() {
  return std::make_unique<NoEp>();
}

}  // namespace moebius
