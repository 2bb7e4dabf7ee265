// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/row_arrivals.cuh"
#include "core/cuda/row_arrivals.h"

namespace moebius {

namespace {

__global__ void await_ids_kernel(const RowArrivals::Signals signals) {
  cuda::await_wave(signals, 0);
}

}  // namespace

void RowArrivals::await_ids(const Stream& stream) const {
  if (!*this) {
    return;
  }
  const cuda::DeviceGuard guard(stream);
  await_ids_kernel<<<1, 1, 0, cuda::as_stream(stream)>>>(signals);
  cuda::check_launch("await_ids_kernel");
}

void cuda::load_await_ids_kernel(int device_index) {
  load_kernels(device_index, await_ids_kernel);
}

}  // namespace moebius
