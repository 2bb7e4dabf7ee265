// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of a product of tiles, for any types and activations.
#pragma once

#include <cstdint>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

// Carries out the epilogue of rows [begin, end) of c.
void finish_rows(const TileEpilogue& e, const float* c, int64_t begin, int64_t end);

}  // namespace moebius::cpu
