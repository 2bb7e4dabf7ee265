// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The float64 reference of a layer, and `--check`, which compares a run with it.
#pragma once

#include <cstdint>
#include <string>

#include "moebius/checkpoint.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::app {

struct ReferenceOutput {
  Tensor output;       // f32 [T, H]
  double seconds = 0;  // of the call
};
// One call of the layer on the CPU, by the reference in float64.  hidden: [T, H].
ReferenceOutput reference_forward(MoeLayerWeights weights,
                                  const Tensor& hidden,
                                  const Stream& stream);

struct CheckResult {
  double error = 0;  // relative_error() of the output
  double tolerance = 0;
  std::string clipped;  // of a failed check: how the checkpoint's static scale clips the input
  bool passed() const { return error <= tolerance; }
};

// Compares `output` with what the reference makes of `hidden`.  load: as the layer of the run was
// loaded, so that both compute with the same weights and the difference is that of the arithmetic
// and of the rounding of activations.
CheckResult check_layer(const Checkpoint& checkpoint,
                        int64_t layer,
                        const LoadOptions& load,
                        const Tensor& hidden,
                        const Tensor& output,
                        const Stream& stream);

}  // namespace moebius::app
