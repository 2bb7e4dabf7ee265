// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which GEMM multiplies the rows of an expert, as choose_gemm() in experts/cuda/gemm/gemm_plan.h
// decides.  The rates of CPUs have the same names.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "plan/deployment.h"

namespace moebius::plan {

// Machine has a rate for each, which Stages::products_us() finds by this order.
enum class GemmKind : uint8_t {
  kF32,
  kBF16,
  kFp8,        // rows and weights in fp8, with the scales of cuda::Fp8Scales
  kInt8,       // rows in int8
  kDecoded,    // kBF16 after weights, and rows in fp8, were decoded into memory
  kRegisters,  // few rows: weights are decoded in registers while they are multiplied
  kCoded,      // all others
};

// `intermediate` is a rank's part of an expert's intermediate size, and `rows` an expert's average
// number of rows, here and below.
GemmKind gemm_kind(const Deployment& deployment, int64_t intermediate, double rows);

// A line of text each on GEMM1 and GEMM2 of num_experts routed experts; see cuda::to_string().
std::array<std::string, 2> gemm_lines(const Deployment& deployment,
                                      int64_t num_experts,
                                      double rows);

// What GEMM1 of num_experts experts stores of rows.  Assumes silu.
enum class Gemm1Result : uint8_t {
  kProducts,   // of gate and up
  kActivated,  // activated rows, which another kernel quantizes where codes are wanted
  kCodes,      // codes of activated rows
};
Gemm1Result gemm1_result(const Deployment& deployment,
                         int64_t num_experts,
                         int64_t intermediate,
                         double rows);

// How many more bytes `elements` elements of rows in fp8 take where GEMMs take codes in bf16.
int64_t widened_bytes(const Deployment& deployment, int64_t intermediate, int64_t elements);

// From how many rows on, of all num_experts experts together, weights are decoded into memory.  0
// where that does not depend on the rows.
int64_t decodes_from(const Deployment& deployment, int64_t num_experts, int64_t intermediate);

// Whether both GEMMs of num_experts experts decode weights while they multiply by others.
bool decodes_ahead(const Deployment& deployment,
                   int64_t num_experts,
                   int64_t intermediate,
                   double rows);

// Bytes of weights that a layer's router and GEMM1 fetch to L2 before the experts begin.
int64_t fetched_ahead(const Deployment& deployment, double rows);

// Bytes of scratch for decoded weights of num_experts experts.
int64_t decoded_bytes(const Deployment& deployment,
                      int64_t num_experts,
                      int64_t intermediate,
                      double rows);

// The number of rows that take as long as GemmKind::kRegisters does for `rows` rows of an expert:
// those of its tiles, and as many more as take the time of decoding.
double rows_in_registers(const Deployment& deployment, int64_t intermediate, double rows);

}  // namespace moebius::plan
