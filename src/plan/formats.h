// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Formats by name, layers by preset or folder, and what backends say to formats.
#pragma once

#include <string>

#include "moebius/support.h"
#include "plan/deployment.h"

namespace moebius::plan {

// Throws InvalidArgument naming all there are.  quant_of_checkpoint (optional): the name of the
// scheme that the folder's weights are stored by.
LayerShape layer_of_preset(const std::string& preset);
LayerShape layer_of_model(const std::string& directory, std::string* quant_of_checkpoint);

// "none", a scheme of load_quant_schemes(), or "fp8", "int8", "int4" for the first of that format.
// Throws InvalidArgument (unknown name), Unsupported (the scheme does not fit the layer's sizes).
Formats find_formats(const std::string& name, const LayerShape& layer);

// What PrepareFinalize::accepts() says of these formats.
Support backend_accepts(All2AllBackend backend, const Deployment& deployment);

}  // namespace moebius::plan
