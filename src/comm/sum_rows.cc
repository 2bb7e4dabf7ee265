// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/sum_rows.h"

#include <algorithm>
#include <array>

#include "comm/stream_copy.h"
#include "core/cpu_features.h"
#include "moebius/float_types.h"

namespace moebius {

namespace {

// Elements [begin, n).
template <typename T>
void sum_from(int64_t begin, const SumRows& sum) {
  constexpr int64_t kPart = 512;  // stays in the first-level cache
  std::array<float, kPart> acc;
  std::array<T, kPart> rounded;
  for (; begin < sum.n; begin += kPart) {
    const int64_t n = std::min(kPart, sum.n - begin);
    std::fill_n(acc.begin(), n, 0.0f);
    for (size_t r = 0; r < sum.rows.size(); ++r) {
      const T* x = reinterpret_cast<const T*>(sum.rows[r]) + begin;
      const float weight = sum.weights.empty() ? 1.0f : sum.weights[r];
      for (int64_t i = 0; i < n; ++i) {
        acc[static_cast<size_t>(i)] += weight * static_cast<float>(x[i]);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      rounded[static_cast<size_t>(i)] = static_cast<T>(acc[static_cast<size_t>(i)]);
    }
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    const auto* from = reinterpret_cast<const std::byte*>(rounded.data());
    if (sum.past_caches) {
      stream_copy(sum.out + begin * kSize, from, n * kSize);
    } else {
      std::memcpy(sum.out + begin * kSize, from, static_cast<size_t>(n * kSize));
    }
  }
}

void sum_from(DType dtype, int64_t begin, const SumRows& sum) {
  switch (dtype) {
    case DType::kF32:
      return sum_from<float>(begin, sum);
    case DType::kF16:
      return sum_from<Float16>(begin, sum);
    default:
      return sum_from<BFloat16>(begin, sum);
  }
}

}  // namespace

void sum_rows_portable(DType dtype, const SumRows& sum) {
  sum_from(dtype, 0, sum);
}

void sum_rows(DType dtype, const SumRows& sum) {
  int64_t done = 0;
#ifdef MOEBIUS_HAVE_AVX2
  if (dtype == DType::kBF16 && cpu_features().avx2) {
    done = sum.n - sum.n % kSumBlock;
    sum_rows_bf16_avx2(sum.rows.data(), sum.weights.empty() ? nullptr : sum.weights.data(),
                       sum.rows.size(), done, sum.out, sum.past_caches);
  }
#endif
  sum_from(dtype, done, sum);
}

}  // namespace moebius
