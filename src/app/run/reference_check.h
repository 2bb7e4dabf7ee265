// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `--check`: the same layer, from the same checkpoint and input, by the float64 reference.
#pragma once

#include <cstdint>

#include "moebius/checkpoint.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::app {

struct CheckResult {
  double error = 0;  // relative_error() of the output
  double tolerance = 0;
  bool passed() const { return error <= tolerance; }
};

// quant: as the layer was loaded, so that both compute with the same weights and what is measured
// is the arithmetic and the rounding of activations.
CheckResult check_layer(const Checkpoint& checkpoint,
                        int64_t layer,
                        const LoadOptions& load,
                        const Tensor& hidden,
                        const Tensor& output,
                        const Stream& stream);

}  // namespace moebius::app
