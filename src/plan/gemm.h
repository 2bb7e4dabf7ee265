// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which GEMM multiplies the rows of an expert, as choose_gemm() (experts/cuda/gemm/gemm_plan.h)
// says.  CPUs give their rates by the same names.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "plan/deployment.h"

namespace moebius::plan {

enum class GemmKind : uint8_t {
  kF32,
  kBF16,
  kFp8Blocks,  // rows by 1 x 128, weights by 128 x 128
  kInt8,       // rows in int8
  kDecoded,    // kBF16, of weights that are decoded into memory first, rows in fp8, too
  kRegisters,  // the same of few rows, while they are multiplied
  kCoded,      // all others
};

// intermediate: what a rank has of an expert's; rows: of an expert, on average.
GemmKind gemm_kind(const Deployment& deployment, int64_t intermediate, double rows);

// One line on GEMM1 and GEMM2 of the routed experts each, as they are planned for so many of them
// with `rows` on average, see cuda::to_string().
std::array<std::string, 2> gemm_lines(const Deployment& deployment,
                                      int64_t num_experts,
                                      double rows);

// Whether GEMM1 stores activated rows, and codes where those are wanted; of silu, which is assumed.
bool activates_in_gemm1(const Deployment& deployment, int64_t intermediate, double rows);

// Bytes more of `elements` of rows in fp8 where GEMMs take their codes in bf16.
int64_t widened_bytes(const Deployment& deployment, int64_t intermediate, int64_t elements);

// Rows of as many experts together from which their weights are decoded into memory, where fewer
// are multiplied otherwise; else 0.
int64_t decodes_from(const Deployment& deployment, int64_t num_experts, int64_t intermediate);

// Scratch for decoded weights of as many experts.
int64_t decoded_bytes(const Deployment& deployment,
                      int64_t num_experts,
                      int64_t intermediate,
                      double rows);

// Rows of an expert that GemmKind::kRegisters multiplies for `rows` of them: whole tiles, and as
// many more as decoding takes the time of.
double rows_in_registers(double rows);

}  // namespace moebius::plan
