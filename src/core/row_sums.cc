// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/row_sums.h"

#include <algorithm>

#include "core/cpu_features.h"
#include "moebius/float_types.h"

namespace moebius {

namespace {

// Products are rounded to the type Product, and the sum after each addition to Sum.
// Why there are two inner loops: the compiler vectorises one rounding per loop.
template <typename T, typename Product, typename Sum>
void sum_as(const RowSum& s) {
  constexpr int64_t kBlock = 512;  // elements that stay in the first-level cache
  Product weighted[kBlock];
  Sum sum[kBlock];
  T* out = static_cast<T*>(s.out);
  for (int64_t begin = 0; begin < s.n; begin += kBlock) {
    const int64_t count = std::min(kBlock, s.n - begin);
    std::fill_n(sum, count, Sum(0.0f));
    for (int64_t k = 0; k < s.num_terms; ++k) {
      const T* x = static_cast<const T*>(s.terms[k].row) + begin;
      for (int64_t i = 0; i < count; ++i) {
        weighted[i] = static_cast<Product>(static_cast<float>(x[i]) * s.terms[k].weight);
      }
      for (int64_t i = 0; i < count; ++i) {
        sum[i] = static_cast<Sum>(static_cast<float>(sum[i]) + static_cast<float>(weighted[i]));
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      out[begin + i] = static_cast<T>(static_cast<float>(sum[i]));
    }
  }
}

template <typename T>
void sum_typed(const RowSum& s) {
  switch (s.rounding) {
    case SumRounding::kSum:
      return sum_as<T, float, float>(s);
    case SumRounding::kProducts:
      return sum_as<T, T, float>(s);
    case SumRounding::kProductsAndSums:
      return sum_as<T, T, T>(s);
  }
}

using SumRows = void (*)(const RowSum&);

SumRows best_sum_rows() {
#ifdef MOEBIUS_HAVE_AVX512
  if (cpu_features().avx512) {
    return sum_rows_avx512;
  }
#endif
#ifdef MOEBIUS_HAVE_AVX2
  if (cpu_features().avx2) {
    return sum_rows_avx2;
  }
#endif
  return sum_rows_portable;
}

}  // namespace

void sum_rows_portable(const RowSum& sum) {
  switch (sum.dtype) {
    case DType::kF32:
      return sum_typed<float>(sum);
    case DType::kF16:
      return sum_typed<Float16>(sum);
    default:
      return sum_typed<BFloat16>(sum);
  }
}

void sum_rows(const RowSum& sum) {
  static const SumRows best = best_sum_rows();
  best(sum);
}

}  // namespace moebius
