// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds formats by name and layers by preset or folder, and asks backends about formats.
#pragma once

#include <string>

#include "checkpoint/weight_scheme.h"
#include "moebius/support.h"
#include "plan/deployment.h"

namespace moebius::plan {

// Throws InvalidArgument listing all presets for an unknown one.
LayerShape layer_of_preset(const std::string& preset);
// Reads the folder's config.json, and puts the scheme of its weights into `stored` unless that is
// null.
LayerShape layer_of_model(const std::string& directory, checkpoint::WeightScheme* stored);

// The formats of a checkpoint whose weights stay as they are.  Activations are quantized as its
// scheme says, or not at all without quantize_activations.
Formats stored_formats(const checkpoint::WeightScheme& stored, bool quantize_activations);
// name is "none", a scheme of load_quant_schemes(), or "fp8", "int8" or "int4" for the first scheme
// of that format.  Throws InvalidArgument for an unknown name, and Unsupported where the scheme
// does not fit the layer's sizes.
Formats find_formats(const std::string& name, const LayerShape& layer);

// What PrepareFinalize::accepts() answers for the deployment's formats.
Support backend_accepts(All2AllBackend backend, const Deployment& deployment);

}  // namespace moebius::plan
