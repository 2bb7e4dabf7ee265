// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Computes the values of a checkpoint's weights straight from the tensors of the file, to compare
// them with loaded ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/quantize.h"
#include "moebius/safetensors.h"

namespace moebius::testing {

// Element (n, k) of the module `name`, such as "model.layers.0.mlp.experts.3.gate_proj".  The
// module's tensors tell its format.
inline float stored_value(const Safetensors& files, const std::string& name, int64_t n, int64_t k) {
  const auto at = [&](const std::string& suffix, int64_t row, int64_t col) {
    const Tensor t = files.tensor(name + suffix);
    return get_float(t, row * t.dim(t.num_dims() - 1) + col);
  };
  if (files.contains(name + ".weight_packed")) {
    const Tensor packed = files.tensor(name + ".weight_packed");
    const auto word = static_cast<uint32_t>(packed.data<int32_t>()[n * packed.dim(1) + k / 8]);
    const int q = static_cast<int>((word >> (4 * (k % 8))) & 15u);
    int zero = 8;
    const Tensor scale = files.tensor(name + ".weight_scale");
    const int64_t group = packed.dim(1) * 8 / scale.dim(1);
    if (files.contains(name + ".weight_zero_point")) {
      const Tensor zeros = files.tensor(name + ".weight_zero_point");
      const auto z = static_cast<uint32_t>(zeros.data<int32_t>()[n / 8 * zeros.dim(1) + k / group]);
      zero = static_cast<int>((z >> (4 * (n % 8))) & 15u);
    }
    return static_cast<float>(q - zero) * at(".weight_scale", n, k / group);
  }
  if (files.contains(name + ".weight_scale_2")) {
    const Tensor codes = files.tensor(name + ".weight");
    const uint8_t byte = codes.data<uint8_t>()[n * codes.dim(1) + k / 2];
    const float q = e2m1_to_float(static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4));
    return q * at(".weight_scale", n, k / 16) *
           get_float(files.tensor(name + ".weight_scale_2"), 0);
  }
  if (files.contains(name + ".weight_scale_inv")) {
    return at(".weight", n, k) * at(".weight_scale_inv", n / 128, k / 128);
  }
  if (files.contains(name + ".weight_scale")) {
    return at(".weight", n, k) * get_float(files.tensor(name + ".weight_scale"), n);
  }
  return at(".weight", n, k);
}

// Element (n, k) of expert e of the fused weight `name`, such as ".../experts.gate_up_proj".  It is
// stored in bf16 [E, K, N] or in mxfp4 blocks [E, N, K/32, 16].
inline float fused_value(
    const Safetensors& files, const std::string& name, int64_t e, int64_t n, int64_t k) {
  if (files.contains(name + "_blocks")) {
    const Tensor blocks = files.tensor(name + "_blocks");
    const int64_t row = e * blocks.dim(1) + n;
    const uint8_t byte = blocks.data<uint8_t>()[(row * blocks.dim(2) + k / 32) * 16 + k % 32 / 2];
    const uint8_t scale =
        files.tensor(name + "_scales").data<uint8_t>()[row * blocks.dim(2) + k / 32];
    return e2m1_to_float(static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4)) *
           e8m0_to_float(scale);
  }
  const Tensor t = files.tensor(name);
  return get_float(t, (e * t.dim(1) + k) * t.dim(2) + n);
}

// Row `row` of an expert's loaded w1 or w2 as the layer computes with it.
inline std::vector<float> loaded_row(const Tensor& w,
                                     const QuantDesc& desc,
                                     const QuantDesc& activation,
                                     int64_t local_expert,
                                     int64_t row,
                                     int64_t gate_rows) {
  std::vector<float> values(static_cast<size_t>(w.dim(2)));
  Tensor gscale = activation.alpha_or_gscale;
  if (gscale && gscale.numel() > 1) {
    gscale = gscale.slice(local_expert, local_expert + 1);
  }
  dequantize_weight_rows(w, desc, {local_expert, row, row + 1, gate_rows}, values.data(), gscale);
  return values;
}

}  // namespace moebius::testing
