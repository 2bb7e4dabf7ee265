// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The vector tile kernels for AVX-512 F, BW, VL, DQ and VNNI.
#include "experts/cpu/tiles/vector_tiles.h"

namespace moebius::cpu {

const TileKernels& vnni_tiles() {
  static const TileKernels kernels = {"vnni", Operand::kF32, multiply, finish, float_exponents};
  return kernels;
}

}  // namespace moebius::cpu
