// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <nccl_device.h>

#include "comm/group/nccl/lsa_pointers.h"
#include "core/allocate.h"
#include "core/cuda/check.h"
#include "core/cuda/runtime.h"

namespace moebius::comm {

namespace {

// A kernel is needed because NCCL gives these addresses to device code only.
__global__ void lsa_pointers_kernel(ncclWindow_t window, int num_ranks, void** pointers) {
  for (int peer = static_cast<int>(threadIdx.x); peer < num_ranks;
       peer += static_cast<int>(blockDim.x)) {
    pointers[peer] = ncclGetLsaPointer(window, 0, peer);
  }
}

}  // namespace

std::vector<std::byte*> lsa_pointers(ncclWindow_t window, int num_ranks, Device device) {
  const cuda::DeviceGuard guard(device.index);
  std::vector<std::byte*> pointers(static_cast<size_t>(num_ranks));
  const auto bytes = static_cast<int64_t>(pointers.size() * sizeof(std::byte*));
  const std::shared_ptr<void> table = allocate(bytes, device);
  lsa_pointers_kernel<<<1, 32, 0, cudaStreamPerThread>>>(window, num_ranks,
                                                         static_cast<void**>(table.get()));
  cuda::check_launch("lsa_pointers_kernel");
  cuda::copy_now(pointers.data(), table.get(), bytes, device.index);
  return pointers;
}

}  // namespace moebius::comm
