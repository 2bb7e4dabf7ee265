// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/reference_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "app/bench/cases.h"
#include "moebius/float_types.h"
#include "moebius/moe_layer.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"

namespace moebius::app {

namespace {

// The largest value that activations hold where a checkpoint has one static scale for them.
float most_held(const QuantDesc& a1) {
  const auto is_one = [](const Tensor& scale) { return scale && scale.numel() == 1; };
  if (a1.format == QuantFormat::kFp8 && is_one(a1.scale)) {
    return kE4M3Max * get_float(a1.scale, 0);
  }
  if (a1.format == QuantFormat::kInt8 && is_one(a1.scale)) {
    return 127.0f * get_float(a1.scale, 0);
  }
  if (a1.format == QuantFormat::kNvfp4 && is_one(a1.alpha_or_gscale)) {
    return kE2M1Max * kE4M3Max / get_float(a1.alpha_or_gscale, 0);
  }
  return std::numeric_limits<float>::infinity();
}

// A static scale is made for the inputs of the model, and synthetic ones may be far larger. Returns
// an empty text where nothing is clipped.
std::string clipped_by(const QuantDesc& a1, const Tensor& hidden) {
  const float most = most_held(a1);
  float largest = 0.0f;
  for (int64_t i = 0; i < hidden.numel(); ++i) {
    largest = std::max(largest, std::fabs(get_float(hidden, i)));
  }
  return largest > most
             ? fmt::format(
                   "the checkpoint's static scale of activations holds values up to {:.3g}, "
                   "and the input has up to {:.3g}: give --input of the model",
                   most, largest)
             : std::string();
}

}  // namespace

ReferenceOutput reference_forward(MoeLayerWeights weights,
                                  const Tensor& hidden,
                                  const Stream& stream) {
  MoeLayerOptions options;
  options.experts = "ref";
  options.precision = Precision::kF64;
  options.weight_memory = WeightMemory::kLent;  // the caller may go on using the weights
  MoeLayer reference(weights, options, stream);
  WorkspacePool workspaces;
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  ReferenceOutput result;
  result.output = Tensor::empty(hidden.shape(), DType::kF32);
  result.seconds = bench::seconds_of([&] { reference.forward(hidden, result.output, context); });
  return result;
}

CheckResult check_layer(const Checkpoint& checkpoint,
                        int64_t layer,
                        const LoadOptions& load,
                        const Tensor& hidden,
                        const Tensor& output,
                        const Stream& stream) {
  MoeLayerWeights weights = checkpoint.load_layer(layer, load);
  const QuantConfig quant = weights.experts.quant;
  const Tensor expected = reference_forward(std::move(weights), hidden, stream).output;
  CheckResult result{relative_error(output, expected), layer_tolerance(quant), {}};
  if (!result.passed()) {
    result.clipped = clipped_by(quant.a1, hidden);
  }
  return result;
}

}  // namespace moebius::app
