// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The adapters of one weight of the CPU experts: c += scaling * B * (A * x), in two steps.
//   shrink  u = A * x, once per row of a tile, before the GEMM
//   expand  c += scaling * B * u, in each of the GEMM's tasks, on its block
// Rows of a tile are taken adapter by adapter, so an adapter's rows share each read of A and B.
// Letters: S halves (2: gate and up), r rank, k columns of the weight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/block_gemm.h"
#include "experts/cpu/kernels.h"
#include "moebius/tensor.h"

namespace moebius::cpu {

// Rows of one expert that follow each other in computing order.
struct LoraTile {
  int64_t e;
  int64_t num_rows;
  const int32_t* adapters;    // [num_rows], -1 = none
  const int32_t* by_adapter;  // [num_rows]: rows of the tile as sort_by_adapter puts them
  float* u;  // [num_rows, S * r]; rows without adapter are neither written nor read
};

// order [n] = 0 .. n - 1 sorted by adapter, those of one adapter in their own order.
void sort_by_adapter(const int32_t* adapters, int64_t n, int32_t* order);

class Lora {
 public:
  // Where rows of the weight that belong to gate (0) and up (1) stand.
  enum class Halves : uint8_t { kOne, kGateThenUp, kInterleaved };

  // a [A, L, S * r, k], b [A, L, N, r], scaling f32 [A]; undefined a and b: no adapters here.
  // operand: f32, bf16 or i8, dtype of the activations.  max_columns: of any range.
  Lora(Tensor a, Tensor b, Tensor scaling, Halves halves, DType operand, int64_t max_columns);

  bool defined() const { return a_.defined(); }
  // Columns of u, S * r; 0 when not defined().
  int64_t num_columns() const { return a_ ? a_.dim(2) : 0; }
  int64_t scratch_bytes() const;  // per thread

  // Columns a shrink should take at a time, so that a block of A stays in cache.
  static constexpr int64_t kShrinkColumns = 16;

  // Columns [column, column + count) of tile.u from rows x [num_rows], k of `operand` each, which
  // stand for x * scale of their row where `row_scales` is given.  REQUIRES: count <=
  // kShrinkColumns.
  void shrink(const LoraTile& tile,
              int64_t column,
              int64_t count,
              const void* const* x,
              const float* row_scales,
              std::byte* scratch) const;

  // Columns range.column .. of c [num_rows, ldc] += what weight rows `range` get.
  void expand(const LoraTile& tile,
              const WeightRange& range,
              float* c,
              int64_t ldc,
              std::byte* scratch) const;

 private:
  struct Buffers;

  // expand() for weight rows of one half: range.count of them, `step` apart in B and in c.
  void expand_half(const LoraTile& tile,
                   const WeightRange& range,
                   int64_t half,
                   int64_t step,
                   float* c,
                   int64_t ldc,
                   const Buffers& buffers) const;
  // buffers.out [m, n] = x[i] . row j of w; row 0 begins at element `first`, the others follow
  // `stride` apart.
  void dot(const float* const* x,
           int64_t m,
           const Tensor& w,
           int64_t first,
           int64_t stride,
           int64_t n,
           int64_t k,
           const Buffers& buffers) const;

  Tensor a_;
  Tensor b_;
  Tensor scaling_;
  Halves halves_;
  DType operand_;
  int64_t max_columns_;
  const CpuKernels* kernels_;
};

}  // namespace moebius::cpu
