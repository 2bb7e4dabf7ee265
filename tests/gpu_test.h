// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Fixtures of tests that need GPUs, and the set-up of their process.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "core/cuda/runtime.h"
#include "moebius/allocator.h"
#include "moebius/device.h"

namespace moebius {

// Ranks of a test may share one GPU, and kernels of one rank wait for those of another.  This must
// run before the first call of CUDA, so it initialises a static variable.
inline const bool kSharedGpuEnvironment = [] {
  cuda::prepare_for_shared_gpus();
  return true;
}();

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { need_gpus(1); }

  void need_gpus(int count) {
    const int found = cuda_device_count();
    if (found == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
    if (found < count) {
      GTEST_SKIP() << "skipped: needs " << count << " GPUs, found " << found;
    }
  }
};

class MultiGpuTest : public GpuTest {
 protected:
  void SetUp() override { need_gpus(2); }
};

// The allocations so far on CPUs and on so many GPUs.
inline int64_t num_allocations(int num_gpus) {
  int64_t total = memory_statistics(Device::cpu()).num_allocations;
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    total += memory_statistics(Device::cuda(gpu)).num_allocations;
  }
  return total;
}

}  // namespace moebius
