// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The vector tile kernels without any instruction set beyond the target's own.
#include "experts/cpu/tiles/vector_tiles.h"

namespace moebius::cpu {

const TileKernels& plain_tiles() {
  static const TileKernels kernels = {"plain", Operand::kF32, multiply, finish, float_exponents};
  return kernels;
}

}  // namespace moebius::cpu
