// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Fixtures of tests whose cases run on the CPU and on a GPU, or on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/cuda/runtime.h"
#include "moebius/device.h"
#include "problems/place.h"
#include "tests/gpu_test.h"

namespace moebius::testing {

class OnDevices : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceType::kCuda && cuda_device_count() == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
    place_ = Place(GetParam());
  }

  Place place_;
};

// A fixture whose cases need one GPU.
class OnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) {
      place_ = Place(DeviceType::kCuda);
    }
  }

  Place place_;
};

inline auto cpu_and_cuda() {
  return ::testing::Values(DeviceType::kCpu, DeviceType::kCuda);
}
inline std::string device_name(const ::testing::TestParamInfo<DeviceType>& test) {
  return test.param == DeviceType::kCpu ? "cpu" : "cuda";
}

}  // namespace moebius::testing
