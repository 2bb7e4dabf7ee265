// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The fixture of tests of kernels for Hopper's tensor cores.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "experts/cuda/rows/row_groups.h"
#include "moebius/device.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "tests/gpu_test.h"

namespace moebius::cuda {

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

  // Rows that are sorted by group, or, where max_rows is not 0, batched.
  struct GroupedRows {
    Tensor numbers;  // offsets or counts
    RowGroups groups;
    int64_t num_rows;
  };
  GroupedRows grouped(const std::vector<int>& rows, int64_t max_rows) const {
    const auto num_groups = static_cast<int64_t>(rows.size());
    const Tensor numbers = Tensor::zeros({num_groups + 1}, DType::kI32);
    auto* n = numbers.data<int32_t>();
    if (max_rows > 0) {
      std::copy(rows.begin(), rows.end(), n);
    } else {
      std::partial_sum(rows.begin(), rows.end(), n + 1);
    }
    const int64_t num_rows = max_rows > 0 ? num_groups * max_rows : n[num_groups];
    const Tensor on_gpu = there(numbers);
    const auto* data = on_gpu.data<int32_t>();
    return {on_gpu,
            max_rows > 0 ? RowGroups::batched(data, max_rows, num_groups)
                         : RowGroups::sorted(data, num_groups),
            num_rows};
  }

  Stream stream_ = Stream::cpu();
};

}  // namespace moebius::cuda
