// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/device.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "core/cuda/check.h"
#include "core/cuda/probe.h"
#include "core/cuda/runtime.h"
#include "moebius/error.h"

namespace moebius::cuda {

namespace {

struct Count {
  int devices = 0;
  cudaError_t status = cudaSuccess;
};

const Count& count() {
  static const Count counted = [] {
    Count c;
    c.status = cudaGetDeviceCount(&c.devices);
    if (c.status != cudaSuccess) {
      (void)cudaGetLastError();
      c.devices = 0;
    }
    return c;
  }();
  return counted;
}

void expect_exists(int index) {
  const auto [devices, status] = count();
  if (status != cudaSuccess || devices == 0) {
    throw Unsupported(fmt::format(
        "{}: no GPU here ({})", to_string(Device::cuda(index)),
        status == cudaSuccess ? "the CUDA runtime shows none" : cudaGetErrorString(status)));
  }
  if (index < 0 || index >= devices) {
    throw Unsupported(fmt::format("{}: no such GPU, this machine has {}",
                                  to_string(Device::cuda(index)), devices));
  }
}

constexpr int kMaxDevices = 64;  // nothing is remembered of any further ones

bool has_note(int index) {
  return index >= 0 && index < kMaxDevices;
}

// The shared memory that this thread knows to be allowed to a kernel on a GPU.  Launchers ask in
// every call, and the runtime takes as long to say so as to do anything else.  Limits only grow, so
// what was allowed stays so.
struct Allowed {
  const void* kernel;
  int index;
  int64_t bytes;
};

Allowed& allowed_of(int index, const void* kernel) {
  constexpr size_t kEntries = 64;  // kernels that meet in an entry only ask more often
  static thread_local std::array<Allowed, kEntries> entries{};
  const auto address = reinterpret_cast<uintptr_t>(kernel) >> 4;
  return entries[(address + static_cast<uintptr_t>(index)) % kEntries];
}

}  // namespace

int device_count() {
  return count().devices;
}

CudaDeviceInfo device_info(int index) {
  expect_exists(index);
  // Why the result is kept: the driver is slow, and the launchers of kernels ask in every call.
  static std::mutex mutex;
  static std::map<int, CudaDeviceInfo> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(index); found != known.end()) {
    return found->second;
  }
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  CudaDeviceInfo info;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  known[index] = info;
  return info;
}

void expect_usable(int index) {
  static std::array<std::atomic<bool>, kMaxDevices> known_usable{};
  if (has_note(index) && known_usable[static_cast<size_t>(index)].load(std::memory_order_relaxed)) {
    return;
  }
  expect_exists(index);
  const DeviceGuard guard(index);
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel_address());
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    const CudaDeviceInfo info = device_info(index);
    throw Unsupported(
        fmt::format("{}: {} has compute capability {}.{}, this build has kernels for {} only",
                    to_string(Device::cuda(index)), info.name, info.major, info.minor,
                    MOEBIUS_CUDA_ARCHITECTURES));
  }
  check_cuda(status, "loading a kernel");
  if (has_note(index)) {
    known_usable[static_cast<size_t>(index)].store(true, std::memory_order_relaxed);
  }
}

void prepare_for_shared_gpus() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

int hardware_queues() {
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int chosen = text == nullptr ? 0 : std::atoi(text);
  return chosen >= 1 && chosen <= 32 ? chosen : 8;
}

void make_current(int index) {
  expect_usable(index);
  check_cuda(cudaSetDevice(index), fmt::format("cudaSetDevice({})", index));
}

void load_kernels(int index, std::initializer_list<const void*> kernels) {
  expect_usable(index);
  const DeviceGuard guard(index);
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

void allow_shared_bytes(int index, const void* kernel, int64_t bytes) {
  Allowed& known = allowed_of(index, kernel);
  if (known.kernel == kernel && known.index == index && known.bytes >= bytes) {
    return;
  }
  load_kernels(index, {kernel});
  const DeviceGuard guard(index);
  // The limit holds for the process, so a larger limit that another object has set must stay.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  if (attributes.maxDynamicSharedSizeBytes < bytes) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               fmt::format("{} bytes of shared memory", bytes));
  }
  known = {kernel, index, bytes};
}

int num_sms(int index) {
  static std::array<std::atomic<int>, kMaxDevices> known{};
  if (has_note(index)) {
    const int sms = known[static_cast<size_t>(index)].load(std::memory_order_relaxed);
    if (sms > 0) {
      return sms;
    }
  }
  int sms = 0;
  check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, index),
             "cudaDeviceGetAttribute");
  if (has_note(index)) {
    known[static_cast<size_t>(index)].store(sms, std::memory_order_relaxed);
  }
  return sms;
}

}  // namespace moebius::cuda
