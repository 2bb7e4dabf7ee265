// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The schemes that unquantized weights can be quantized with while they are loaded, and the tensors
// a weight then consists of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "moebius/quant_config.h"
#include "moebius/quantize.h"

namespace moebius::checkpoint {

struct LoadScheme {
  std::string_view name;
  std::string_view description;
  QuantFormat format;
  GroupShape group;  // of weights; int4: the largest of 128, 64, 32 that divides H and I
  QuantConfig (*make)(const LoadScheme& scheme, QuantTensors tensors, GroupShape group);
};

// Throws InvalidArgument naming all there are, and `others` that the caller takes.
const LoadScheme& find_load_scheme(const std::string& name,
                                   const std::string& others = "auto, none");

// How w1 and w2 of whole experts are quantized.  Throws Unsupported where gate and up rows
// alternate and groups of rows would straddle experts' ends.
QuantizeSpec load_weight_spec(const LoadScheme& scheme,
                              int64_t hidden,
                              int64_t intermediate,
                              bool is_interleaved);

// w1 or w2 of L experts.
struct QuantizedWeight {
  int64_t num_parts = 1;  // stretches of rows quantized by themselves: gate and up of w1
  Tensor values;          // [L, N, K]
  Tensor scale;           // [L, ..] as the group says
  Tensor global_scale;    // nvfp4: f32 [L, parts]
};

// Throws Unsupported naming the scheme where quantize() would refuse a weight [rows, cols], with
// `halves` as below.
void expect_quantizable(
    const LoadScheme& scheme, const QuantizeSpec& spec, int64_t rows, int64_t cols, int64_t halves);

// Uninitialised; `halves`: 2 where w1 holds gate, then up.  Throws Unsupported naming the scheme.
QuantizedWeight allocate_weight(const LoadScheme& scheme,
                                const QuantizeSpec& spec,
                                const Shape& shape,
                                int64_t halves);

// The config of experts with these weights, activations as the scheme says.
QuantConfig make_quant_config(const LoadScheme& scheme,
                              const QuantizeSpec& spec,
                              const QuantizedWeight& w1,
                              const QuantizedWeight& w2);

}  // namespace moebius::checkpoint
