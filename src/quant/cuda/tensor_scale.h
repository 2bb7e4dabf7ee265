// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The scale of a whole tensor, or one for each of its rows, on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "moebius/quantize.h"

namespace moebius::quant::device {

// *scale = the tensor's scale, either the given one or the one from the maximum.  With
// global_scale_per_row there is a scale for each row.
void launch_tensor_scale(const Tensor& x,
                         const QuantizeSpec& spec,
                         const Tensor& given,
                         float* scale,
                         cudaStream_t stream);

}  // namespace moebius::quant::device
