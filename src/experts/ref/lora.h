// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Computes what one adapter adds to one element: scaling * B[n] . (A * x).  Sums run in order.
#pragma once

#include <cstdint>

#include "moebius/tensor.h"

namespace moebius::ref {

// Sets u[j] = sum over k of A[adapter, e, j, k] * x(k) for all rows j of a [adapters, L, rows, k].
template <typename Real, typename Value>
void lora_shrink(const Tensor& a, int64_t adapter, int64_t e, Value x, Real* u) {
  const int64_t rows = a.dim(2);
  const int64_t cols = a.dim(3);
  const int64_t first = (adapter * a.dim(1) + e) * rows;
  for (int64_t j = 0; j < rows; ++j) {
    Real sum = 0;
    for (int64_t k = 0; k < cols; ++k) {
      sum += static_cast<Real>(get_float(a, (first + j) * cols + k)) * x(k);
    }
    u[j] = sum;
  }
}

// Returns scaling[adapter] * sum over j of B[adapter, e, n, j] * u[j], b [adapters, L, N, r].
template <typename Real>
Real lora_expand(
    const Tensor& b, const Tensor& scaling, int64_t adapter, int64_t e, int64_t n, const Real* u) {
  const int64_t rank = b.dim(3);
  const int64_t row = (adapter * b.dim(1) + e) * b.dim(2) + n;
  Real sum = 0;
  for (int64_t j = 0; j < rank; ++j) {
    sum += static_cast<Real>(get_float(b, row * rank + j)) * u[j];
  }
  return static_cast<Real>(get_float(scaling, adapter)) * sum;
}

}  // namespace moebius::ref
