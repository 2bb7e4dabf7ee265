// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What every prepare does to its rows, before or after they travel: check them, multiply them with
// the router weight, quantize them.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "layer/rows/quantize_rows.h"
#include "moebius/prepare_finalize.h"
#include "moebius/quantize.h"

namespace moebius {

// What the prepare of this micro-batch has left for its finalize; throws InvalidArgument where
// there is none.
template <typename Call>
Call& prepared_call(std::map<int, Call>& calls, const CallContext& context) {
  const auto found = calls.find(context.microbatch);
  expect(found != calls.end(), [&] {
    return "finalize of micro-batch " + std::to_string(context.microbatch) +
           " came before its prepare";
  });
  return found->second;
}

// Throws InvalidArgument on shapes and dtypes of a modular prepare's input.
void expect_prepare_input(const PrepareInput& input, const CallContext& context);

// hidden * hidden's dtype(weight) in a workspace where the weight goes on the input, else hidden.
// Never in place: shared experts still read hidden.
Tensor weighted_input(const PrepareInput& input, const CallContext& context);

// Whether rows can be handed over as `quant` says; num_scales: how many local experts may bring a
// static scale of their own (1 where rows are quantized before they are sorted by expert).
Support rows_quant_supported(const QuantConfig& quant, bool defer_input_quant, int64_t num_scales);

// How rows are quantized; nullopt where they are not.
std::optional<QuantizeSpec> rows_quant_spec(const QuantConfig& quant, bool defer_input_quant);
std::optional<QuantizeSpec> rows_quant_spec(const PrepareInput& input);

// x quantized to kPrepare's workspace, by the only static scale there may be.
QuantizedRows quantize_to_workspace(const Tensor& x,
                                    const QuantizeSpec& spec,
                                    const QuantDesc& desc,
                                    const CallContext& context);

}  // namespace moebius
