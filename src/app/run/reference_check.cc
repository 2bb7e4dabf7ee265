// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/reference_check.h"

#include <utility>

#include "moebius/moe_layer.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"

namespace moebius::app {

CheckResult check_layer(const Checkpoint& checkpoint,
                        int64_t layer,
                        const LoadOptions& load,
                        const Tensor& hidden,
                        const Tensor& output,
                        const Stream& stream) {
  MoeLayerWeights weights = checkpoint.load_layer(layer, load);
  const double tolerance = layer_tolerance(weights.experts.quant);
  MoeLayerOptions options;
  options.experts = "ref";
  options.precision = Precision::kF64;
  MoeLayer reference(std::move(weights), options, stream);

  const Tensor expected = Tensor::empty(output.shape(), DType::kF32);
  WorkspacePool workspaces;
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  reference.forward(hidden, expected, context);
  return {relative_error(output, expected), tolerance};
}

}  // namespace moebius::app
