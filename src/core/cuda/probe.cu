// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/probe.h"

namespace moebius::cuda {

namespace {

__global__ void probe_kernel() {}

}  // namespace

const void* probe_kernel_address() {
  return reinterpret_cast<const void*>(&probe_kernel);
}

}  // namespace moebius::cuda
