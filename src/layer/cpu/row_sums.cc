// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/cpu/row_sums.h"

#include <algorithm>

#include "core/cpu_features.h"
#include "moebius/float_types.h"

namespace moebius::row_sums {

namespace {

// Sum is what the sum is rounded to each time.
// Why two loops: the compiler vectorises one rounding per loop.
template <typename T, typename Sum>
void sum_rows(const Term* terms, int64_t num_terms, int64_t n, T* out) {
  constexpr int64_t kBlock = 512;  // elements that stay in the first-level cache
  T weighted[kBlock];
  Sum sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    std::fill_n(sum, count, Sum(0.0f));
    for (int64_t k = 0; k < num_terms; ++k) {
      const T* x = static_cast<const T*>(terms[k].row) + begin;
      for (int64_t i = 0; i < count; ++i) {
        weighted[i] = static_cast<T>(static_cast<float>(x[i]) * terms[k].weight);
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
void sum_as(const Term* terms, int64_t num_terms, bool sums_in_type, int64_t n, void* out) {
  const auto sum = sums_in_type ? sum_rows<T, T> : sum_rows<T, float>;
  sum(terms, num_terms, n, static_cast<T*>(out));
}

}  // namespace

void weighted_sum_portable(
    Type type, const Term* terms, int64_t num_terms, bool sums_in_type, int64_t n, void* out) {
  switch (type) {
    case Type::kF32:
      return sum_as<float>(terms, num_terms, sums_in_type, n, out);
    case Type::kBF16:
      return sum_as<BFloat16>(terms, num_terms, sums_in_type, n, out);
    case Type::kF16:
      return sum_as<Float16>(terms, num_terms, sums_in_type, n, out);
  }
}

WeightedSum choose_weighted_sum() {
#ifdef MOEBIUS_HAVE_AVX512
  if (cpu_features().avx512) {
    return weighted_sum_avx512;
  }
#endif
#ifdef MOEBIUS_HAVE_AVX2
  if (cpu_features().avx2) {
    return weighted_sum_avx2;
  }
#endif
  return weighted_sum_portable;
}

}  // namespace moebius::row_sums
