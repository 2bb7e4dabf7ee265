// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How experts compute with weights as they are stored: the QuantConfig of a scheme, and the scales
// of whole tensors that belong to it.
#pragma once

#include "checkpoint/expert_source.h"
#include "checkpoint/weight_scheme.h"
#include "moebius/quant_config.h"

namespace moebius::checkpoint {

// The config of experts with these tensors; without tensors, that of experts of any size.
// Activations are quantized as the scheme says, or not at all without quantize_activations.
QuantConfig stored_quant_config(const WeightScheme& scheme,
                                bool quantize_activations,
                                QuantTensors tensors);

// Puts the global scales of weights and the static scales of activations into `tensors`.  Does
// nothing where the scheme has neither.  Throws what ExpertSource::scalar() throws.
void load_static_scales(const ExpertSource& source,
                        const ExpertIds& experts,
                        bool quantize_activations,
                        QuantTensors& tensors);

}  // namespace moebius::checkpoint
