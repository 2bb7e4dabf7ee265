// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The experts stage on a GPU, for any scheme and both formats.  Sizes stay on the device, so that
// apply() waits for nothing and a CUDA graph can capture it.  Weights on the GPU are used where
// they are; others are copied there once.
#pragma once

#include <memory>

#include "moebius/experts.h"

namespace moebius::cuda {

Support experts_support(const ExpertsDesc& desc, const ExpertWeights& weights);
std::unique_ptr<Experts> make_cuda_experts(const ExpertsDesc& desc,
                                           ExpertWeights weights,
                                           const Stream& stream);

}  // namespace moebius::cuda
