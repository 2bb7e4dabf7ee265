// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/signals.cuh"
#include "comm/high_throughput/cuda/kernels.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

// The grid is one thread.
__global__ void stop_kernel(const __grid_constant__ SignalContext signals, const CallState* state) {
  const auto self = static_cast<uint8_t>(signals.rank);
  raise_fault(signals, {FaultReason::kStopped, SignalOp::kDispatchCounts, self, self, state->epoch},
              0);
}

}  // namespace

void load_stop_kernel(int device) {
  cuda::load_kernels(device, stop_kernel);
}

cudaError_t launch_stop(const SignalContext& signals, const CallState* state, cudaStream_t stream) {
  stop_kernel<<<1, 1, 0, stream>>>(signals, state);
  return cudaGetLastError();
}

}  // namespace moebius::comm
