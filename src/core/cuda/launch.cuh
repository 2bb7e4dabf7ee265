// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Programmatic launches: the blocks of a kernel start on the SMs, and do what depends on no other
// kernel, while the previous kernel of the stream ends.  With few tokens a layer is a chain of
// kernels of a few microseconds, and starting them is a good part of that time.
//
// REQUIRES: every thread of a kernel that is launched this way calls ptx::await_kernel_before()
// before it touches what earlier kernels write, or writes what they touch.  Then all earlier
// kernels have ended, not only the previous one, because each waits for its predecessor.
//
// A kernel that calls ptx::let_next_begin() lets blocks of the next kernel start wherever its own
// blocks leave room; otherwise they start when its blocks end.  A kernel calls it after
// await_kernel_before(), so that all kernels but the one ahead are complete when the next one
// begins.  A kernel between two GEMMs may call it before, too (ptx::await_and_let_next).  Then
// GEMM2 begins when all that was ahead of GEMM1 is complete, and requests weights while GEMM1 and
// the kernels between may still run.  A kernel that waits for other ranks, or leaves SMs to another
// stream, must not call it, because blocks of the next kernel would occupy SMs that others need.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "core/cuda/check.h"
#include "core/cuda/ptx.cuh"

namespace moebius::cuda {

// is_cluster: whether the grid is one cluster, so has 8 blocks at most.
struct EarlyGrid {
  dim3 blocks;
  bool is_cluster = false;

  EarlyGrid(dim3 of, bool as_cluster = false) : blocks(of), is_cluster(as_cluster) {}
  EarlyGrid(unsigned of, bool as_cluster = false) : EarlyGrid(dim3(of), as_cluster) {}
};

template <typename... Params>
void launch_early(std::string_view name,
                  void (*kernel)(Params...),
                  EarlyGrid grid,
                  dim3 threads,
                  size_t shared_bytes,
                  cudaStream_t stream,
                  const std::type_identity_t<Params>&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = grid.blocks.x;
  attributes[1].val.clusterDim.y = grid.blocks.y;
  attributes[1].val.clusterDim.z = grid.blocks.z;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = grid.is_cluster ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

}  // namespace moebius::cuda
