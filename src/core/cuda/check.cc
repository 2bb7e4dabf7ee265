// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/check.h"

#include <fmt/format.h>

#include "moebius/device.h"
#include "moebius/error.h"
#include "moebius/log.h"
#include "moebius/stream.h"

namespace moebius::cuda {

namespace {

std::string describe(cudaError_t status, std::string_view call) {
  int index = 0;
  const bool has_device = cudaGetDevice(&index) == cudaSuccess;
  return fmt::format("{}{}: {} ({})", call,
                     has_device ? " on " + to_string(Device::cuda(index)) : "",
                     cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace

void throw_cuda_error(cudaError_t status, std::string_view call, const Where& where) {
  (void)cudaGetLastError();  // a later check must not find this error again
  std::string_view file = where.file_name();
  file.remove_prefix(file.find_last_of('/') + 1);  // npos + 1 == 0
  const std::string text = fmt::format("{} ({}:{})", describe(status, call), file, where.line());
  if (status == cudaErrorMemoryAllocation) {
    throw OutOfMemory(text);
  }
  throw CudaError(text);
}

void log_cuda_error(cudaError_t status, std::string_view call) noexcept {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) {
    return;
  }
  try {
    log(LogLevel::kError, describe(status, call));
  } catch (const std::exception&) {
    // Nothing is left that could report the error.
  }
}

DeviceGuard::DeviceGuard(int index) {
  check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != index) {
    check_cuda(cudaSetDevice(index), fmt::format("cudaSetDevice({})", index));
    changed_ = true;
  }
}

DeviceGuard::DeviceGuard(const Stream& stream) : DeviceGuard(stream.device().index) {}

DeviceGuard::~DeviceGuard() {
  if (changed_) {
    log_cuda_error(cudaSetDevice(before_), "cudaSetDevice");
  }
}

cudaStream_t as_stream(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native_handle());
}

}  // namespace moebius::cuda
