// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/reference_check.h"

#include <utility>

#include "app/bench/cases.h"
#include "moebius/moe_layer.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"

namespace moebius::app {

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
  const double tolerance = layer_tolerance(weights.experts.quant);
  const Tensor expected = reference_forward(std::move(weights), hidden, stream).output;
  return {relative_error(output, expected), tolerance};
}

}  // namespace moebius::app
