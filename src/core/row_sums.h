// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of rows in f32.  A sum starts at 0, and its terms are added in the given order.
// All processors give the same bits, except that a NaN may be another NaN.
#pragma once

#include <cstdint>

#include "moebius/dtype.h"

namespace moebius {

// Tells what is rounded to the rows' type in addition to the final sum.
enum class SumRounding : uint8_t {
  kSum,              // nothing else
  kProducts,         // the products row[i] * weight
  kProductsAndSums,  // the products, and the sum after every addition
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
  int64_t num_terms;  // may be 0; the sum is then 0
  int64_t n;
  void* out;         // [n]; must not be the row of a term
  bool past_caches;  // aligned stores bypass caches; the caller then needs a fence (stream_copy.h)
  // The rows of the next sum, which are prefetched; optional.
  const SumTerm* next = nullptr;
  int64_t num_next = 0;
};

void sum_rows(const RowSum& sum);  // uses the best of the functions below

void sum_rows_portable(const RowSum& sum);
// REQUIRES: a processor with the instruction set (see core/cpu_features.h).
// Why RowSum has plain pointers: the files of instruction sets share no inline functions with
// others, because the linker might keep a copy that other machines cannot run.
void sum_rows_avx2(const RowSum& sum);
void sum_rows_avx512(const RowSum& sum);

}  // namespace moebius
