// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// check_cuda() and its kin.  Every call of the CUDA runtime goes through them.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

#include "core/forward.h"

namespace moebius::cuda {

using Where = std::source_location;

// The message is as "cudaMalloc on cuda:1: out of memory (cudaErrorMemoryAllocation)
// (memory.cc:40)".
[[noreturn]] void throw_cuda_error(cudaError_t status, std::string_view call, const Where& where);

// Throws OutOfMemory for cudaErrorMemoryAllocation, and else CudaError.  `call` names the call and,
// if useful, its arguments: "cudaMalloc of 4096 bytes".  The message names the current device.
inline void check_cuda(cudaError_t status, std::string_view call, Where where = Where::current()) {
  if (status != cudaSuccess) [[unlikely]] {
    throw_cuda_error(status, call, where);
  }
}

// For destructors: logs the error, but says nothing while the process ends.
void log_cuda_error(cudaError_t status, std::string_view call) noexcept;

// Call this after each launch of a kernel.
inline void check_launch(std::string_view kernel, Where where = Where::current()) {
  check_cuda(cudaGetLastError(), kernel, where);
}

// Makes a device this thread's current one for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  explicit DeviceGuard(const Stream& stream);  // its device
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

inline cudaStream_t as_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaStream_t as_stream(const Stream& stream);

}  // namespace moebius::cuda
