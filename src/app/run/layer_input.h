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

// Reads the input file or draws synthetic hidden states.
// Throws InvalidArgument, which names file, tensor and both values, for a tensor that is missing,
// for several tensors without a name, and for another dtype or shape.  It also throws for NaN and
// infinity and names their place, since a router cannot rank NaN and the result would only spread
// it; values must be finite in the model's dtype, too (nullopt: the model does not say it).
LayerInput load_input(const RunOptions& options,
                      int64_t hidden_size,
                      std::optional<DType> model_dtype);

}  // namespace moebius::app
