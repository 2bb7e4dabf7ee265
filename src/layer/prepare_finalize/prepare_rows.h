// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What every prepare does with its rows before or after they travel: it checks them, multiplies
// them by the router weight and quantizes them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layer/rows/quantize_rows.h"
#include "moebius/prepare_finalize.h"
#include "moebius/quantize.h"

namespace moebius {

// What the prepare of this micro-batch has kept for its finalize.  Throws InvalidArgument if it has
// not been called.
template <typename Call>
Call& prepared_call(std::map<int, Call>& calls, const CallContext& context) {
  const auto found = calls.find(context.microbatch);
  expect(found != calls.end(), [&] {
    return "finalize of micro-batch " + std::to_string(context.microbatch) +
           " came before its prepare";
  });
  return found->second;
}

// Throws InvalidArgument for shapes and dtypes that a modular prepare cannot take.
void expect_prepare_input(const PrepareInput& input, const CallContext& context);

// Whether shared experts can compute on the quantized rows of this prepare.
inline bool hands_over_own_rows(const PrepareInput& input) {
  return input.own_rows != nullptr && !input.apply_router_weight_on_input &&
         !input.defer_input_quant;
}

// Throws InvalidArgument for extra tensors that do not have a row per token, and Unsupported where
// the backend carries none.
void expect_extras(const PrepareInput& input, const PrepareFinalizeTraits& backend);

// A tensor of the workspace kExtras for each extra tensor, of the shape that `shape_of` gives.
std::vector<Tensor> extra_rows(const PrepareInput& input,
                               const std::function<Shape(const Tensor& extra)>& shape_of,
                               const CallContext& context);

// If the router weight goes on the input: hidden times the weight, which is first rounded to
// hidden's dtype, in a workspace, since shared experts still read hidden.  Otherwise hidden itself.
Tensor weighted_input(const PrepareInput& input, const CallContext& context);

// Whether rows can be quantized as `quant` says.  num_scales: how many static scales are allowed
// besides a single one: the local experts', or 1 if rows are quantized before they are sorted.
Support rows_quant_supported(const QuantConfig& quant, bool defer_input_quant, int64_t num_scales);

// How prepare quantizes rows; nullopt where it does not.
std::optional<QuantizeSpec> rows_quant_spec(const QuantConfig& quant, bool defer_input_quant);
std::optional<QuantizeSpec> rows_quant_spec(const PrepareInput& input);

// How rows that travel are quantized, before they leave or after they have arrived.  Where experts
// take unquantized rows, too, only rows that can be quantized before they leave are.
std::optional<QuantizeSpec> travel_quant_spec(const PrepareInput& input);
// Whether the scales of a row depend on nothing but this row and what every rank has, so that it
// can be quantized before it leaves.
bool quantizes_by_row(const QuantizeSpec& spec, const QuantDesc& a1);
// Whether that is one static scale, which then does not travel.
bool has_one_static_scale(const QuantizeSpec& spec, const QuantDesc& a1);

// x [rows, H] quantized into the workspace kPrepare.
QuantizedRows quantize_to_workspace(const Tensor& x,
                                    const RowQuant& how,
                                    const CallContext& context);

}  // namespace moebius
