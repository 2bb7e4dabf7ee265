// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of rows, as WeightAndReduce defines them, one function per instruction set.
// Why nothing but declarations here: files compiled for an instruction set share no inline
// functions with others, or the linker might keep a copy that other machines cannot execute.
#pragma once

#include <cstdint>

namespace moebius::row_sums {

enum class Type : int { kF32, kBF16, kF16 };

// One term of a sum: a row and its weight.
struct Term {
  const void* row;  // [n] of the type
  float weight;
};

// out[i] = sum over the terms, in order and from 0, of row[i] * weight rounded to the type.  The
// sum is in f32 and rounded once, or with `sums_in_type` rounded after every addition.
using WeightedSum = void (*)(
    Type type, const Term* terms, int64_t num_terms, bool sums_in_type, int64_t n, void* out);

void weighted_sum_portable(
    Type type, const Term* terms, int64_t num_terms, bool sums_in_type, int64_t n, void* out);
// REQUIRES: a processor with the instruction set (see core/cpu_features.h).
void weighted_sum_avx2(
    Type type, const Term* terms, int64_t num_terms, bool sums_in_type, int64_t n, void* out);
void weighted_sum_avx512(
    Type type, const Term* terms, int64_t num_terms, bool sums_in_type, int64_t n, void* out);

// The fastest for this processor.
WeightedSum choose_weighted_sum();

}  // namespace moebius::row_sums
