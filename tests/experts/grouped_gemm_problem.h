// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Operands of grouped GEMMs for tests, the same for the same seed.
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
  int64_t max_rows = 0;    // 0: one after the other
  int64_t spare_rows = 0;  // of no group, at the end
  bool has_bias = false;
  int64_t scale_block = 0;  // bf16: see GroupedGemm; 0: no b_scale

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

// scale_block of problems of this dtype: none, such as end with a stage of the kernel, and such as
// end within one.
std::vector<int64_t> scale_blocks(DType dtype);

Tensor ints(const std::vector<int>& values);

// All on the host; `out` is poison.
GroupedGemm make_operands(const GemmProblem& p, uint32_t seed);
// With rows of a that lie somewhere else, some of them several times.  Of `host` those become
// equal, so that both have the same products.
GroupedGemm scattered(const GroupedGemm& host, uint32_t seed);

GroupedGemm on_gpu(const GroupedGemm& host, const Stream& stream);
// out, back on the host.
Tensor run_on_gpu(const GroupedGemm& host,
                  const Stream& stream,
                  int num_sms = 0,
                  const Tensor& next_item = {});

// On the stream's device.
Tensor poisoned(const Shape& shape, DType dtype, const Stream& stream);
// Both on the GPU.
void expect_same_bytes(const Tensor& expected,
                       const Tensor& actual,
                       const GemmProblem& p,
                       const Stream& stream);

}  // namespace moebius::cuda
