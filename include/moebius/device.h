// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Device: where a tensor lives and where a stream runs, and which GPUs this machine has.
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  // CUDA ordinal; 0 on CPU

  static Device cpu() { return {}; }
  static Device cuda(int index) { return {DeviceType::kCuda, index}; }
  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool is_cuda() const { return type == DeviceType::kCuda; }
  bool operator==(const Device&) const = default;
};

std::string to_string(Device device);  // "cpu", "cuda:3"

// How many GPUs the CUDA runtime shows to this process; 0 without a driver or in a build without
// CUDA.
int cuda_device_count();

struct CudaDeviceInfo {
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;
  int num_sms = 0;
  int64_t memory_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // the most a kernel may ask for
};
// Describes any GPU, even one that this build has no code for.  Throws Unsupported when there is no
// such GPU.
CudaDeviceInfo cuda_device_info(int index);

// Throws Unsupported with the reason when this build cannot work on the device: built without CUDA,
// no driver, no such GPU, or a GPU the kernels were not compiled for.
void expect_usable(Device device);

}  // namespace moebius
