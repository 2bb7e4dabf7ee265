// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What is read from the structs of the C API that describe experts.
#pragma once

#include <string_view>

#include "moebius/experts.h"
#include "moebius/modular_kernel.h"
#include "moebius/stream.h"
#include "moebius_c.h"

namespace moebius::c_api {

// Null stands for no weights.
ExpertWeights read_expert_weights(const moebius_expert_weights* weights, const Stream& stream);
// What experts can be described from: w1 and w2 are given and have three dimensions each, and the
// quantization means something.  Throws InvalidArgument.
void expect_described(const ExpertWeights& weights);
// Null stands for gated silu.
ActivationSpec read_activation(const moebius_activation* activation);
// bf16, f16 or f32, the types of hidden states.
DType read_in_dtype(int32_t dtype);
ActivationFormat read_activation_format(int32_t format);
WeightMemory read_weight_memory(int32_t lends_weights);
// Null stands for all defaults.
KernelOptions read_kernel_options(const moebius_kernel_options* options);

}  // namespace moebius::c_api
