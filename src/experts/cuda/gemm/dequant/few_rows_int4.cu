// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/dequant/few_rows_kernel.cuh"

namespace moebius::cuda::few_rows {

namespace {

template <typename Scale, Changes kChanges, bool kWhole = false>
Kernels kernels_for(const KernelChoice& choice) {
  return gemm_kernels_of<Decoding<Code::kU4, Scale, Float16, kChanges, false, kWhole>>(choice);
}

template <typename Scale>
Kernels kernels_for(const KernelChoice& choice) {
  if (has_row_sums(Code::kU4, choice.tile_rows)) {
    return choice.ends <= 1 ? kernels_for<Scale, Changes::kBetweenSteps, true>(choice)
                            : kernels_for<Scale, Changes::kWithinSteps, true>(choice);
  }
  return choice.folds_int4  ? kernels_for<Scale, Changes::kNever>(choice)
         : choice.ends <= 1 ? kernels_for<Scale, Changes::kBetweenSteps>(choice)
                            : kernels_for<Scale, Changes::kWithinSteps>(choice);
}

// Made: see order_made_rows_kernel().
template <typename T, typename Made>
OrderKernel made_rows_kernel(Activates activates) {
  return find_by_activation(activates, [](auto activates) -> OrderKernel {
    return order_made_rows_kernel<Code::kU4, false, T, activates(), Made>;
  });
}

}  // namespace

Kernels int4_kernels(const KernelChoice& choice, DType rows) {
  Kernels kernels = choice.scale == DType::kF32    ? kernels_for<float>(choice)
                    : choice.scale == DType::kBF16 ? kernels_for<BFloat16>(choice)
                                                   : kernels_for<Float16>(choice);
  const bool is_bf16 = rows == DType::kBF16;
  const bool has_sums = has_row_sums(Code::kU4, choice.tile_rows);
  kernels.orders_whole_rows = kernels.makes_halves = is_bf16 || has_sums;
  kernels.order =
      is_bf16 && has_sums ? made_rows_kernel<BFloat16, SummedHalves<BFloat16>>(choice.activates)
      : is_bf16           ? made_rows_kernel<BFloat16, Halves>(choice.activates)
      : has_sums          ? made_rows_kernel<Float16, SummedHalves<Float16>>(choice.activates)
                          : find_by_activation(choice.activates, [](auto activates) -> OrderKernel {
                     return order_rows_kernel<Code::kU4, false, Float16, activates()>;
                   });
  return kernels;
}

}  // namespace moebius::cuda::few_rows
