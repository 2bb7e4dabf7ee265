// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The vector tile kernels for AVX2, FMA and F16C.
#include "experts/cpu/tiles/vector_tiles.h"

namespace moebius::cpu {

const TileKernels& avx2_tiles() {
  static const TileKernels kernels = {"avx2", Operand::kF32, multiply, finish, float_exponents};
  return kernels;
}

}  // namespace moebius::cpu
