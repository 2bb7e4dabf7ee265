// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Eight neighbouring elements of a thread as codes of nvfp4 or mx formats, times their block
// scales.
#pragma once

#include "core/cuda/floats.cuh"
#include "moebius/quantize.h"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"

namespace moebius::cuda {

// Elements are multiplied by `factor`, rounded, and multiplied by `scale`.
struct BlockScale {
  float factor;
  float scale;
};
template <QuantFormat kFormat>
__device__ __forceinline__ BlockScale block_scale(float largest, float global, bool is_of_row) {
  if constexpr (kFormat == QuantFormat::kNvfp4) {
    const float wanted = quant::detail::nvfp4_wanted_scale(largest, global);
    const float scale =
        quant::device::decode1(quant::Code::kE4M3, quant::device::e4m3_pair(wanted, 0.0f) & 0xffu);
    const float unit = quant::detail::nvfp4_unit(scale, global);
    // A row's global scale is a power of two, so that it goes into the values, too.
    return {quant::detail::reciprocal_or_zero(unit), is_of_row ? unit : scale};
  } else {
    const uint8_t code = quant::detail::mx_scale_code(kFormat, largest);
    return {quant::detail::e8m0_reciprocal(code), e8m0_to_float(code)};
  }
}

// Sets v to code times scale, which bf16 holds exactly.  A block of 16 or 32 elements lies in
// neighbouring lanes, and all lanes of the warp call it.  `global`: nvfp4's global scale, that of
// the row if `is_of_row`.
template <QuantFormat kFormat, quant::Encode kHow, typename T>
__device__ __forceinline__ void put_scaled_codes(const Raw8<T>& raw,
                                                 float global,
                                                 bool is_of_row,
                                                 float (&v)[kVector]) {
  constexpr int kLanes = (kFormat == QuantFormat::kNvfp4 ? 16 : 32) / kVector;  // of a block
  const BlockScale block =
      block_scale<kFormat>(largest_of_lanes(absmax(raw), kLanes), global, is_of_row);
  float x[kVector];
  widen(raw, x);
  quant::device::round8_as<kHow>(x, block.factor, v);
#pragma unroll
  for (float& value : v) {
    value *= block.scale;
  }
}

}  // namespace moebius::cuda
