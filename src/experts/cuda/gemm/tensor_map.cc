// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/tensor_map.h"

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "moebius/error.h"

namespace moebius::cuda {

namespace {

// A function of the driver.  Why it is found by name: a program that links libcuda does not start
// on a machine without it.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                                cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess) {
      throw Unsupported("the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address);
  }();
  return function;
}

}  // namespace

CUtensorMap make_tensor_map(const void* data,
                            CUtensorMapDataType type,
                            CUtensorMapSwizzle swizzle,
                            std::initializer_list<MapDim> dims,
                            Lines lines) {
  const cuuint64_t element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32    ? 4
                             : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                                                                        : 1;
  cuuint64_t sizes[5];
  cuuint64_t strides[5];
  cuuint32_t box[5];
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  for (size_t i = 0; const MapDim& dim : dims) {
    sizes[i] = static_cast<cuuint64_t>(dim.size);
    strides[i] = static_cast<cuuint64_t>(dim.stride) * element;
    box[i++] = static_cast<cuuint32_t>(dim.box);
  }
  CUtensorMap map;
  const CUresult result =
      encode_function()(&map, type, static_cast<cuuint32_t>(dims.size()), const_cast<void*>(data),
                        sizes, strides + 1, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                        lines == Lines::kPairs ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                                               : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError(fmt::format("cuTensorMapEncodeTiled of {} x {}: error {}", sizes[1], sizes[0],
                                static_cast<int>(result)));
  }
  return map;
}

}  // namespace moebius::cuda
