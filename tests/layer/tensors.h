// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors and checks that the tests of the layer stage share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/profile.h"
#include "moebius/quant_config.h"
#include "moebius/tensor.h"
#include "moebius/tolerance.h"
#include "tests/error_text.h"

namespace moebius::testing {

Tensor filled(const Shape& shape, DType dtype, const std::vector<float>& values);

Tensor random_tensor(const Shape& shape, DType dtype, int64_t seed, float scale = 1.0f);

// Each token has K different experts in descending order (modulo E), and none is masked.
Tensor random_ids(int64_t num_tokens, int64_t topk, int64_t num_experts, int64_t seed);

Tensor ids_of(const Shape& shape, const std::vector<int32_t>& values);

std::vector<float> floats(const Tensor& tensor);

std::vector<int32_t> ints(const Tensor& tensor);

void expect_same_bits(const Tensor& a, const Tensor& b);

std::vector<std::string> stage_names(const Profile& profile);

// Scales of weights that only make a config complete; no test reads their values.
QuantTensors weight_scales(int64_t num_experts);

// Fills memory with NaN patterns that must not be read before they are overwritten.
void poison(const Tensor& tensor);

}  // namespace moebius::testing
