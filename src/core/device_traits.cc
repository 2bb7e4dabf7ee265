// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/device_traits.h"

#include "core/cuda/runtime.h"

namespace moebius {

int num_sms(Device device) {
  return device.is_cuda() ? cuda_device_info(device.index).num_sms : 0;
}

Stream make_stream(Device device) {
  return device.is_cuda() ? Stream::cuda(device.index) : Stream::cpu();
}

void give_back_after(const Stream& stream) {
  if (stream.device().is_cuda()) {
    cuda::give_back_after(stream.native_handle(), stream.device().index);
  }
}

}  // namespace moebius
