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

// Says whether a miss brings a line of 128 bytes to L2, or two neighbours.  Pairs are read faster,
// but not where lines are the first to make room, since the second may have gone before it is read.
enum class Lines : uint8_t { kPairs, kSingle };
constexpr Lines lines_of(bool evicts) {
  return evicts ? Lines::kSingle : Lines::kPairs;
}

// `dims` has the innermost dimension first.  Elements outside the tensor are zeros.  Throws
// CudaError where the driver refuses the map, and Unsupported where it makes none.
CUtensorMap make_tensor_map(const void* data,
                            CUtensorMapDataType type,
                            CUtensorMapSwizzle swizzle,
                            std::initializer_list<MapDim> dims,
                            Lines lines = Lines::kPairs);

}  // namespace moebius::cuda
