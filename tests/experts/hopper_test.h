// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests of kernels for Hopper's tensor cores.
#pragma once

#include "moebius/device.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "tests/gpu_test.h"

namespace moebius {

class HopperTest : public GpuTest {
 protected:
  void SetUp() override {
    need_gpus(1);
    if (!IsSkipped() && cuda_device_info(0).major != 9) {
      GTEST_SKIP() << "skipped: not a Hopper GPU";
    }
    if (!IsSkipped()) {
      stream_ = Stream::cuda(0);
    }
  }

  Tensor there(const Tensor& tensor) const {
    return tensor ? to_device(tensor, stream_.device(), stream_) : tensor;
  }
  Tensor here(const Tensor& tensor) const {
    const Tensor out = to_device(tensor, Device::cpu(), stream_);
    stream_.synchronize();
    return out;
  }

  Stream stream_ = Stream::cpu();
};

}  // namespace moebius
