// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/dequant/few_rows_kernel.cuh"

namespace moebius::cuda::few_rows {

Kernels f16_kernels(const KernelChoice& choice) {
  return find_kernels<Float16>(choice);
}

}  // namespace moebius::cuda::few_rows
