// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Programmatic launches: a kernel's blocks come to the SMs, and do what needs nobody, while the
// kernel ahead of it in the stream ends.  With few tokens a layer is a chain of kernels of a few
// microseconds, a good part of which is that.
//
// Who launches so: every thread of the kernel calls ptx::await_kernel_before() before it touches
// what kernels ahead of it write, or writes what they touch.  All of those have ended then, not
// only the last, since each waits for the one before.
//
// A kernel that calls ptx::let_next_begin() lets the next one's blocks in wherever its own leave
// room; else they come as its own end.  Only after await_kernel_before(), so that at most two
// kernels of a stream are under way; and not where it waits for other ranks, or leaves SMs to
// another stream: the next one's blocks would wait on SMs that somebody else needs.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "core/cuda/check.h"
#include "core/cuda/ptx.cuh"

namespace moebius::cuda {

template <typename... Params>
void launch_early(std::string_view name,
                  void (*kernel)(Params...),
                  dim3 grid,
                  dim3 threads,
                  size_t shared_bytes,
                  cudaStream_t stream,
                  const std::type_identity_t<Params>&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

}  // namespace moebius::cuda
