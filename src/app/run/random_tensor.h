// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reproducible test data: the same seed and shape give the same values on every machine.
#pragma once

#include <cstdint>

#include "moebius/tensor.h"

namespace moebius::app {

// Draws normally distributed values with mean 0.  dtype: f32, bf16 or f16.
Tensor random_normal(const Shape& shape, DType dtype, uint64_t seed, float deviation = 1.0f);

}  // namespace moebius::app
