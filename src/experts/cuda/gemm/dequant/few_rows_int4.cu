// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/dequant/few_rows_kernel.cuh"

namespace moebius::cuda::few_rows {

namespace {

template <typename Scale, Changes kChanges>
Kernels kernels_for(const KernelChoice& choice, DType rows) {
  using D = Decoding<Code::kU4, Scale, Float16, kChanges>;
  if (rows == DType::kF16) {
    return kernels_of<D>(choice);
  }
  Kernels kernels = gemm_kernels_of<D>(choice);
  kernels.orders_whole_rows = kernels.makes_halves = true;
  kernels.order = find_by_activation(choice.activates, [](auto activates) -> OrderKernel {
    return order_made_rows_kernel<Code::kU4, false, BFloat16, activates(), Halves>;
  });
  return kernels;
}

template <typename Scale>
Kernels kernels_for(const KernelChoice& choice, DType rows) {
  return choice.folds_int4  ? kernels_for<Scale, Changes::kNever>(choice, rows)
         : choice.ends <= 1 ? kernels_for<Scale, Changes::kBetweenSteps>(choice, rows)
                            : kernels_for<Scale, Changes::kWithinSteps>(choice, rows);
}

}  // namespace

Kernels int4_kernels(const KernelChoice& choice, DType rows) {
  return choice.scale == DType::kF32    ? kernels_for<float>(choice, rows)
         : choice.scale == DType::kBF16 ? kernels_for<BFloat16>(choice, rows)
                                        : kernels_for<Float16>(choice, rows);
}

}  // namespace moebius::cuda::few_rows
