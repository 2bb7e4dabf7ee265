// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Expert GEMMs of random weights in codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "experts/cuda/gemm/expert_gemm.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {

enum class Scales { kTensor, kColumn, kGroup };

struct Scheme {
  const char* name;
  QuantFormat format;
  Scales scales;
  int64_t group = 0;  // columns of a group, for kGroup
  int64_t group_rows = 1;
  DType scale_dtype = DType::kF32;
  bool has_zero_points = false;
};

struct Sizes {
  std::vector<int> rows;  // per group
  int64_t n;
  int64_t k;
};

class CodedGemmTest : public HopperTest {
 protected:
  WeightOperand weight(const Scheme& s, int64_t groups, int64_t n, int64_t k) const {
    WeightOperand w;
    QuantDesc& desc = w.quant;
    desc.format = s.format;
    w.gate_rows = (n + 1) / 2;
    const bool is_fp8 = s.format == QuantFormat::kFp8 || s.format == QuantFormat::kMxfp8;
    w.values =
        testing::random_bytes({groups, n, k}, storage_dtype(s.format), 0, is_fp8 ? 0x7e : 255, 1);
    const auto blocks = [&](int64_t rows) { return (rows + s.group_rows - 1) / s.group_rows; };
    const int64_t scale_rows = blocks(w.gate_rows) + blocks(n - w.gate_rows);
    Shape shape = {groups};
    if (s.scales == Scales::kColumn) {
      shape = {groups, scale_rows};
      desc.shape = GroupShape{1, -1};
    } else if (s.scales == Scales::kGroup) {
      shape = {groups, scale_rows, (k + s.group - 1) / s.group};
      desc.shape = GroupShape{s.group_rows, s.group};
    }
    switch (s.scale_dtype) {
      case DType::kE8M0:
        desc.scale = testing::random_bytes(shape, s.scale_dtype, 120, 130, 2);
        break;
      case DType::kF8E4M3:
        desc.scale = testing::random_bytes(shape, s.scale_dtype, 0x00, 0x7e, 2);
        desc.alpha_or_gscale =
            there(testing::random_uniform({groups, 2}, DType::kF32, 3, 0.5f, 2.0f));
        w.activation_gscale = there(testing::random_uniform({groups}, DType::kF32, 4, 0.5f, 2.0f));
        break;
      default:
        desc.scale = testing::random_uniform(shape, s.scale_dtype, 2, 0.5f, 2.0f);
    }
    if (s.has_zero_points) {
      const int most = s.format == QuantFormat::kInt4 ? 15 : 255;
      desc.zero_point = there(testing::random_bytes(shape, DType::kU8, 0, most, 5));
    }
    desc.scale = there(desc.scale);
    desc.bias = there(testing::random_uniform({groups, n}, DType::kF32, 6, -2.0f, 2.0f));
    w.values = there(w.values);
    return w;
  }

  // `rows` says how many rows each group has.  Batched rows have room for a few more than the
  // largest group.
  ExpertGemm gemm_of(const WeightOperand& w,
                     const std::vector<int>& rows,
                     bool is_batched,
                     DType dtype = DType::kBF16) {
    rows_ = grouped(rows, is_batched ? *std::max_element(rows.begin(), rows.end()) + 3 : 0);
    const int64_t num_rows = rows_.num_rows;
    ExpertGemm gemm;
    gemm.w = &w;
    gemm.a.values =
        there(testing::random_uniform({num_rows, w.values.dim(2)}, dtype, 7, -1.0f, 1.0f));
    gemm.rows = rows_.groups;
    gemm.keeps_f32 = true;
    gemm.out = there(Tensor::zeros({num_rows, w.values.dim(1)}, DType::kF32, Device::cpu()));
    return gemm;
  }

  // The error is relative to the largest element of a row.
  static void expect_near(const Tensor& want, const Tensor& have, float tolerance) {
    int64_t wrong = 0;
    std::string first;
    for (int64_t r = 0; r < want.dim(0); ++r) {
      const auto* w = want[r].data<float>();
      const auto* h = have[r].data<float>();
      float largest = 0.0f;
      for (int64_t i = 0; i < want.dim(1); ++i) {
        largest = std::max(largest, std::abs(w[i]));
      }
      for (int64_t i = 0; i < want.dim(1); ++i) {
        if (!(std::abs(w[i] - h[i]) <= tolerance * largest) && wrong++ == 0) {
          first = "row " + std::to_string(r) + " column " + std::to_string(i) + ": " +
                  std::to_string(h[i]) + ", expected " + std::to_string(w[i]) + ", largest " +
                  std::to_string(largest);
        }
      }
    }
    EXPECT_EQ(wrong, 0) << first;
  }

  GroupedRows rows_;  // of the last GEMM
};

}  // namespace moebius::cuda
