// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Formats by name, layers by preset or folder, and what backends say to formats.
#pragma once

#include <string>

#include "checkpoint/weight_scheme.h"
#include "moebius/support.h"
#include "plan/deployment.h"

namespace moebius::plan {

// Throws InvalidArgument naming all there are.  stored (optional): how the folder's weights are.
LayerShape layer_of_preset(const std::string& preset);
LayerShape layer_of_model(const std::string& directory, checkpoint::WeightScheme* stored);

// Of a checkpoint's weights as they are; activations as its scheme says, or not quantized.
Formats stored_formats(const checkpoint::WeightScheme& stored, bool quantize_activations);
// "none", a scheme of load_quant_schemes(), or "fp8", "int8", "int4" for the first of that format.
// Throws InvalidArgument (unknown name), Unsupported (the scheme does not fit the layer's sizes).
Formats find_formats(const std::string& name, const LayerShape& layer);

// What PrepareFinalize::accepts() says of these formats.
Support backend_accepts(All2AllBackend backend, const Deployment& deployment);

}  // namespace moebius::plan
