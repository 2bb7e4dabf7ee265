// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/gpu/cublas.h"

#include <dlfcn.h>

#include <memory>
#include <string>

#include "core/cuda/check.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace moebius::bench {

namespace {

struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  cublasLtHandle_t handle = nullptr;
  bool is_there = false;
};

const Library& library() {
  static const Library loaded = [] {
    Library lib;
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) {
      return lib;
    }
    const auto find = [&](const char* symbol, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, symbol));
      return function != nullptr;
    };
    lib.is_there = find("cublasLtCreate", lib.create) && find("cublasLtMatmul", lib.matmul) &&
                   find("cublasLtMatmulDescCreate", lib.desc_create) &&
                   find("cublasLtMatmulDescSetAttribute", lib.desc_set) &&
                   find("cublasLtMatrixLayoutCreate", lib.layout_create) &&
                   find("cublasLtMatrixLayoutSetAttribute", lib.layout_set) &&
                   find("cublasLtMatmulPreferenceCreate", lib.preference_create) &&
                   find("cublasLtMatmulPreferenceSetAttribute", lib.preference_set) &&
                   find("cublasLtMatmulAlgoGetHeuristic", lib.heuristic) &&
                   lib.create(&lib.handle) == CUBLAS_STATUS_SUCCESS;
    return lib;
  }();
  return loaded;
}

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(std::string(call) + ": status " + std::to_string(status));
  }
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_8F_E4M3;
}

// The layout of `batches` dense column-major matrices of rows x columns, one after the other.
cublasLtMatrixLayout_t make_layout(DType dtype, int64_t rows, int64_t columns, int64_t batches) {
  const Library& lib = library();
  cublasLtMatrixLayout_t layout = nullptr;
  check(lib.layout_create(&layout, type_of(dtype), static_cast<uint64_t>(rows),
                          static_cast<uint64_t>(columns), rows),
        "cublasLtMatrixLayoutCreate");
  const auto count = static_cast<int32_t>(batches);
  const int64_t stride = rows * columns;
  check(lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute");
  check(
      lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
      "cublasLtMatrixLayoutSetAttribute");
  return layout;
}

}  // namespace

std::function<void()> cublas_even_groups(const cuda::GroupedGemm& gemm, const Stream& stream) {
  const Library& lib = library();
  if (!lib.is_there) {
    return {};
  }
  const int64_t groups = gemm.b.dim(0);
  const int64_t n = gemm.b.dim(1);
  const int64_t k = gemm.b.dim(2);
  const int64_t m = gemm.a.numel() / k / groups;
  cublasLtMatmulDesc_t desc = nullptr;
  check(lib.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(lib.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
        "cublasLtMatmulDescSetAttribute");
  const auto weights = make_layout(gemm.b.dtype(), k, n, groups);
  const auto rows = make_layout(gemm.a.dtype(), k, m, groups);
  const auto out = make_layout(gemm.out.dtype(), n, m, groups);
  const Tensor workspace = Tensor::empty({int64_t{64} << 20}, DType::kU8, stream.device());
  const auto workspace_bytes = static_cast<size_t>(workspace.nbytes());
  cublasLtMatmulPreference_t preference = nullptr;
  check(lib.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  check(lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                           sizeof(workspace_bytes)),
        "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t way{};
  int found = 0;
  const cublasStatus_t status =
      lib.heuristic(lib.handle, desc, weights, rows, out, out, preference, 1, &way, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
    return {};
  }
  // Why nothing is destroyed: the few small objects of a description may live as long as the
  // program.
  return [=, &lib] {
    const float one = 1.0f;
    const float zero = 0.0f;
    check(lib.matmul(lib.handle, desc, &one, gemm.b.raw(), weights, gemm.a.raw(), rows, &zero,
                     gemm.out.raw(), out, gemm.out.raw(), out, &way.algo, workspace.raw(),
                     workspace_bytes, cuda::as_stream(stream)),
          "cublasLtMatmul");
  };
}

}  // namespace moebius::bench

#else

namespace moebius::bench {

std::function<void()> cublas_even_groups(const cuda::GroupedGemm&, const Stream&) {
  return {};
}

}  // namespace moebius::bench

#endif
