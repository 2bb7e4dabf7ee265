// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Operands of grouped GEMMs for tests.  Equal seeds give equal operands.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::cuda {

inline constexpr int64_t kScaleBlock = 128;  // of f8e4m3
inline constexpr DType kGemmFormats[] = {DType::kBF16, DType::kF8E4M3};

struct GemmProblem {
  DType dtype = DType::kBF16;
  DType out = DType::kBF16;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<int> rows;   // per group
  int64_t max_rows = 0;    // 0: groups follow one another
  int64_t spare_rows = 0;  // rows of no group, at the end
  bool has_bias = false;
  // See GroupedGemm; 0: no b_scale.  That of f8e4m3 has blocks of kScaleBlock.
  int64_t scale_block = 0;

  int64_t num_groups() const { return static_cast<int64_t>(rows.size()); }
  int64_t num_rows() const {
    return max_rows > 0 ? max_rows * num_groups()
                        : std::accumulate(rows.begin(), rows.end(), spare_rows);
  }
  int64_t first_row(int64_t group) const {
    return max_rows > 0 ? max_rows * group
                        : std::accumulate(rows.begin(), rows.begin() + group, int64_t{0});
  }
};

std::string to_string(const GemmProblem& p);

// The values of scale_block to test for a dtype: none, blocks that end with a stage of the kernel,
// and for bf16 and f16 blocks that end within one.
std::vector<int64_t> scale_blocks(DType dtype);

Tensor ints(const std::vector<int>& values);

// Makes all operands on the host; `out` is poison.
GroupedGemm make_operands(const GemmProblem& p, uint32_t seed);
// The same GEMM with rows of a that lie elsewhere and are named by a_rows, some of them several
// times.  The rows of `host` that these stand for become equal, so that both GEMMs have the same
// products.
GroupedGemm scattered(const GroupedGemm& host, uint32_t seed);

GroupedGemm on_gpu(const GroupedGemm& host, const Stream& stream);
// Runs the GEMM on the GPU and returns out on the host.
Tensor run_on_gpu(const GroupedGemm& host,
                  const Stream& stream,
                  int num_sms = 0,
                  const Tensor& next_item = {});

// A tensor of poison on the stream's device.
Tensor poisoned(const Shape& shape, DType dtype, const Stream& stream);
// Expects equal bytes of two tensors on the GPU.
void expect_same_bytes(const Tensor& expected,
                       const Tensor& actual,
                       const GemmProblem& p,
                       const Stream& stream);

}  // namespace moebius::cuda
