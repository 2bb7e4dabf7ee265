// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The adapters of one weight of the CPU experts: c += scaling * B * (A * x), in two steps.
//   shrink  u = A * x, once per row of an item, before its GEMM
//   expand  c += scaling * B * u, for each block of the GEMM's columns
// Rows are taken adapter by adapter, so an adapter's rows share each read of A and B.
// Letters: S halves (2: gate and up), r rank, k columns of the weight.
#pragma once

#include <cstddef>
#include <cstdint>

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

// Scales of codes: one for each `block` columns of a row, `per_row` of them.
struct RowScales {
  const float* scales = nullptr;  // [num_rows, per_row]
  int64_t per_row = 1;
  int64_t block = 0;
};

// Weight rows first, first + step, ..., all of one half.
struct LoraRows {
  int64_t first;
  int64_t step;
  int64_t count;
  int64_t half;
};

// order [n] = 0 .. n - 1 sorted by adapter, those of one adapter in their own order.
void sort_by_adapter(const int32_t* adapters, int64_t n, int32_t* order);

// Immutable; any number of threads may call it, each with its own scratch.
class Lora {
 public:
  // a [A, L, S * r, k], b [A, L, N, r], both f32, bf16 or f16; scaling f32 [A].  Undefined a and b:
  // this weight has no adapters.
  Lora(Tensor a, Tensor b, Tensor scaling);

  bool defined() const { return a_.defined(); }
  // Columns of u, S * r; 0 when not defined().
  int64_t num_columns() const { return a_ ? a_.dim(2) : 0; }
  int64_t scratch_bytes() const;  // per thread

  static constexpr int64_t kMostRows = 32;  // of an expand()

  // tile.u from rows x [num_rows], k values of `dtype` each: f32, bf16 or f16, or fp8 or int8 codes
  // with their scales.
  void shrink(const LoraTile& tile,
              const std::byte* const* x,
              DType dtype,
              const RowScales& scales,
              std::byte* scratch) const;

  // c [num_rows, ldc]: column j of each row += what weight row j of `rows` gets.
  // REQUIRES: rows.count <= kMostRows.
  void expand(
      const LoraTile& tile, const LoraRows& rows, float* c, int64_t ldc, std::byte* scratch) const;

 private:
  struct Buffers;

  void widen(
      const std::byte* row, DType dtype, const float* scales, int64_t block, float* out) const;
  // n rows of a_ or b_: row 0 begins at element `first`, the others follow `stride` apart.
  struct Block {
    const Tensor& w;
    int64_t first;
    int64_t stride;
    int64_t n;
  };
  // buffers.out [m, n] = x[i] . row j of the block.
  void dot(const float* const* x, int64_t m, const Block& block, const Buffers& buffers) const;

  Tensor a_;
  Tensor b_;
  Tensor scaling_;
  const CpuKernels* kernels_;
};

}  // namespace moebius::cpu
