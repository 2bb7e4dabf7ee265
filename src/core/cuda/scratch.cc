// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/scratch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "core/cuda/check.h"

namespace moebius::cuda {

namespace {

// A pool of our own, so that what is given back stays for the next taker: giving it back to the
// driver would make a stream wait.
cudaMemPool_t scratch_pool(int index) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;  // never destroyed: the driver outlives us
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = pools.try_emplace(index, nullptr);
  if (is_new) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypeNone;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = index;
    check_cuda(cudaMemPoolCreate(&entry->second, &properties), "cudaMemPoolCreate");
    uint64_t keep = std::numeric_limits<uint64_t>::max();
    check_cuda(cudaMemPoolSetAttribute(entry->second, cudaMemPoolAttrReleaseThreshold, &keep),
               "cudaMemPoolSetAttribute");
  }
  return entry->second;
}

}  // namespace

Scratch::Scratch(int64_t bytes, const Stream& stream) : stream_(stream) {
  const int index = stream.device().index;
  const DeviceGuard guard(index);
  check_cuda(cudaMallocFromPoolAsync(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 1)),
                                     scratch_pool(index), as_stream(stream.native_handle())),
             fmt::format("scratch of {} bytes", bytes));
}

Scratch::~Scratch() {
  try {
    const DeviceGuard guard(stream_.device().index);
    log_cuda_error(cudaFreeAsync(data_, as_stream(stream_.native_handle())), "cudaFreeAsync");
  } catch (const CudaError&) {
    // The device has failed for good; its memory goes with it.
  }
}

}  // namespace moebius::cuda
