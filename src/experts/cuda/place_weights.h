// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/experts.h"

namespace moebius::cuda {

// Returns the weights on the stream's GPU, in memory of their owner (ExpertsDesc::weight_memory).
// Those on the host are copied before the function returns.  Biases become f32, in which every GEMM
// adds them.
ExpertWeights place_weights(ExpertWeights weights, const ExpertsDesc& desc, const Stream& stream);

}  // namespace moebius::cuda
