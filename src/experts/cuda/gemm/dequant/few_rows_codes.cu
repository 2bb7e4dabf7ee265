// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/dequant/few_rows_launch.cuh"
#include "experts/cuda/gemm/dequant/few_rows_order.cuh"

namespace moebius::cuda::few_rows {

namespace {

using quant::Encode;

template <typename T, Activates kActivates>
OrderKernel kernel_for(QuantFormat format) {
  constexpr QuantFormat kMxfp4 = QuantFormat::kMxfp4;
  constexpr QuantFormat kMxfp8 = QuantFormat::kMxfp8;
  constexpr QuantFormat kNvfp4 = QuantFormat::kNvfp4;
  return format == kMxfp4   ? order_made_rows_kernel<Code::kE2M1, true, T, kActivates,
                                                   ScaledCodes<T, kMxfp4, Encode::kE2M1Multiply>>
         : format == kNvfp4 ? order_made_rows_kernel<Code::kE2M1, true, T, kActivates,
                                                     ScaledCodes<T, kNvfp4, Encode::kE2M1Multiply>>
                            : order_made_rows_kernel<Code::kE4M3, false, T, kActivates,
                                                     ScaledCodes<T, kMxfp8, Encode::kE4M3Overflow>>;
}

template <typename T>
OrderKernel kernel_for(QuantFormat format, Activates activates) {
  return find_by_activation(activates,
                            [&](auto constant) { return kernel_for<T, constant()>(format); });
}

}  // namespace

OrderKernel coding_kernel(QuantFormat format, Activates activates, DType rows) {
  return rows == DType::kF16 ? kernel_for<Float16>(format, activates)
                             : kernel_for<BFloat16>(format, activates);
}

}  // namespace moebius::cuda::few_rows
