// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/dequant/few_rows_kernel.cuh"

namespace moebius::cuda::few_rows {

Kernels packed_kernels(const KernelChoice& choice) {
  constexpr Changes kNever = Changes::kNever;
  Kernels kernels =
      choice.scale == DType::kE8M0
          ? gemm_kernels_of<Decoding<Code::kE2M1, uint8_t, BFloat16, kNever, true>>(choice)
          : gemm_kernels_of<Decoding<Code::kE2M1, uint16_t, BFloat16, kNever, true>>(choice);
  kernels.order = bf16_kernels(choice).order;  // it goes by OrderArgs::is_packed
  return kernels;
}

}  // namespace moebius::cuda::few_rows
