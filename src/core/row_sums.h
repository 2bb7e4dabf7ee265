// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of rows, in f32, in the order given and from 0.  The same bits whatever the
// processor, but for which NaN a NaN is.
#pragma once

#include <cstdint>

#include "moebius/dtype.h"

namespace moebius {

// What is rounded to the rows' type besides the sum at its end.
enum class SumRounding : uint8_t {
  kSum,              // nothing
  kProducts,         // row[i] * weight
  kProductsAndSums,  // that, and the sum after every addition
};

struct SumTerm {
  const void* row;  // [n]
  float weight;
};

// out[i] = sum over the terms of row[i] * weight.
struct RowSum {
  DType dtype;  // f32, f16 or bf16
  SumRounding rounding;
  const SumTerm* terms;
  int64_t num_terms;  // 0: the sum is 0
  int64_t n;
  void* out;         // [n]; no term's row
  bool past_caches;  // store so where out is aligned; the caller needs a fence (stream_copy.h)
  // Rows summed next, fetched meanwhile; optional.
  const SumTerm* next = nullptr;
  int64_t num_next = 0;
};

void sum_rows(const RowSum& sum);  // by the best of those below

void sum_rows_portable(const RowSum& sum);
// REQUIRES: a processor with the instruction set (see core/cpu_features.h).
// Why plain pointers above: these files share no inline functions with others, or the linker might
// keep a copy that other machines cannot execute.
void sum_rows_avx2(const RowSum& sum);
void sum_rows_avx512(const RowSum& sum);

}  // namespace moebius
