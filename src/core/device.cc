// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/device.h"

#include "core/cuda/runtime.h"

namespace moebius {

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index);
}

int cuda_device_count() {
  return cuda::device_count();
}

CudaDeviceInfo cuda_device_info(int index) {
  return cuda::device_info(index);
}

void expect_usable(Device device) {
  if (device.is_cuda()) {
    cuda::expect_usable(device.index);
  }
}

}  // namespace moebius
