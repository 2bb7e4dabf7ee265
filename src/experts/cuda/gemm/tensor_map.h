// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps: how TMA finds a box of a tensor.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace moebius::cuda {

// How kSm90 finds boxes of the columns of its weights.
struct ColumnMaps {
  CUtensorMap wide;
  CUtensorMap narrow;  // boxes of half as many columns
};

struct MapDim {
  int64_t size;
  int64_t stride;  // in elements
  int box;
};

// `dims` has the innermost dimension first.  Elements outside the tensor are zeros.  Throws
// CudaError where the driver refuses the map, and Unsupported where it makes none.
CUtensorMap make_tensor_map(const void* data,
                            CUtensorMapDataType type,
                            CUtensorMapSwizzle swizzle,
                            std::initializer_list<MapDim> dims);

}  // namespace moebius::cuda
