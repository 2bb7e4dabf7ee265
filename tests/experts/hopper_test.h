// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The fixture of tests of kernels for Hopper's tensor cores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "experts/cuda/gemm/expert_gemm.h"
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

  Tensor room(const Shape& shape, DType dtype) const {
    return there(Tensor::zeros(shape, dtype, Device::cpu()));
  }

  // What the GEMM of f32 values gives for the same operands.
  Tensor by_values(const ExpertGemm& gemm) const {
    ExpertGemm other = gemm;
    other.out = room(gemm.out.shape(), gemm.out.dtype());
    general_gemm(other, stream_);
    return here(other.out);
  }

  static bool same(const Tensor& a, const Tensor& b) {
    return a.nbytes() == b.nbytes() &&
           std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0;
  }

  // Runs the GEMM on five SMs, and twice with items that are drawn; `change` is called between
  // these. REQUIRES: `expected`, in f32, is what it gave on all SMs, where blocks took items by
  // turns.
  template <typename Change>
  void expect_same_bits_anyhow(ExpertGemm& gemm, const Tensor& expected, Change change) const {
    gemm.max_sms = 5;
    gemm.rows.settled = true;
    for (const char* how : {"on fewer SMs", "with items drawn", "with items drawn again"}) {
      gemm.out = room(gemm.out.shape(), DType::kF32);
      run_expert_gemm(gemm, stream_);
      EXPECT_TRUE(same(expected, here(gemm.out))) << "not the same bits " << how;
      if (gemm.next_item) {
        change();
      } else {
        gemm.next_item = room({2}, DType::kI32);
      }
    }
  }

  // NaN at `nan_k` of row 1, and infinity at the beginning of row 4, stay in their row.
  void expect_rows_apart(ExpertGemm gemm, int64_t nan_k) const {
    run_expert_gemm(gemm, stream_);
    const Tensor expected = here(gemm.out);
    const Tensor rows = here(gemm.a.values);
    const int64_t k = rows.dim(1);
    set_float(rows, 1 * k + nan_k, std::numeric_limits<float>::quiet_NaN());
    set_float(rows, 4 * k, std::numeric_limits<float>::infinity());
    gemm.a.values = there(rows);
    gemm.out = room(gemm.out.shape(), DType::kF32);
    run_expert_gemm(gemm, stream_);
    const Tensor actual = here(gemm.out);
    for (int64_t r = 0; r < actual.dim(0); ++r) {
      const bool is_odd = r == 1 || r == 4;
      EXPECT_EQ(same(expected[r], actual[r]), !is_odd) << r;
      EXPECT_EQ(std::isfinite(get_float(actual, r * actual.dim(1))), !is_odd) << r;
    }
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
