// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The schemes with which unquantized weights can be quantized while they are loaded, and the
// tensors that a weight then consists of.
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
  GroupShape group;  // of weights; for int4 the largest of 128, 64, 32 that divides H and I
  QuantConfig (*make)(const LoadScheme& scheme, QuantTensors tensors, GroupShape group);
};

// Throws InvalidArgument for an unknown name, listing all names and `others`, which the caller
// accepts besides.
const LoadScheme& find_load_scheme(const std::string& name,
                                   const std::string& others = "auto, none");

// How w1 and w2 of whole experts are quantized.  Throws Unsupported where gate and up rows
// alternate and the intermediate size is not a multiple of a group's rows.
QuantizeSpec load_weight_spec(const LoadScheme& scheme,
                              int64_t hidden,
                              int64_t intermediate,
                              bool is_interleaved);

// w1 or w2 of L experts.
struct QuantizedWeight {
  int64_t num_parts = 1;  // stretches of rows that are quantized separately: gate and up of w1
  Tensor values;          // [L, N, K]
  Tensor scale;           // [L, rows, columns], one element per group
  Tensor global_scale;    // nvfp4: f32 [L, num_parts]
};

// Throws Unsupported naming the scheme where quantize() would refuse a weight [rows, cols].  halves
// is 2 where w1 holds gate, then up, and else 1.
void expect_quantizable(
    const LoadScheme& scheme, const QuantizeSpec& spec, int64_t rows, int64_t cols, int64_t halves);

// Allocates a weight of the shape [L, N, K], uninitialised.  Throws as expect_quantizable() does.
QuantizedWeight allocate_weight(const LoadScheme& scheme,
                                const QuantizeSpec& spec,
                                const Shape& shape,
                                int64_t halves);

// The config of experts with these weights; activations are quantized as the scheme says.
QuantConfig make_quant_config(const LoadScheme& scheme,
                              const QuantizeSpec& spec,
                              const QuantizedWeight& w1,
                              const QuantizedWeight& w2);

}  // namespace moebius::checkpoint
