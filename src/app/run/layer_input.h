// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The hidden states that `moebius run` sends through a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/options.h"
#include "moebius/tensor.h"

namespace moebius::app {

struct LayerInput {
  Tensor hidden;       // [T, H] bf16, f16 or f32
  std::string source;  // "FILE" or "synthetic"
  std::string tensor;  // its name in the file; empty when synthetic
};

// Throws InvalidArgument naming file, tensor and both values: no such tensor, several tensors and
// no name, another dtype or shape, NaN or infinity (with its place: a router cannot rank NaN, and
// the result would only spread it), as it stands or in the model's dtype (nullopt: not said).
LayerInput load_input(const RunOptions& options,
                      int64_t hidden_size,
                      std::optional<DType> model_dtype);

}  // namespace moebius::app
