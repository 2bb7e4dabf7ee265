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

// A tile is some rows of one expert that follow each other in computing order.
struct LoraTile {
  int64_t e;
  int64_t num_rows;
  const int32_t* adapters;    // [num_rows], -1 = none
  const int32_t* by_adapter;  // [num_rows]: rows of the tile in the order of sort_by_adapter
  float* u;  // [num_rows, S * r]; rows without adapter are neither written nor read
};

// Scales of codes: one for each `block` columns of a row, `per_row` of them.
struct RowScales {
  const float* scales = nullptr;  // [num_rows, per_row]
  int64_t per_row = 1;
  int64_t block = 0;
};

// `count` weight rows first, first + step, ..., all of one half.
struct LoraRows {
  int64_t first;
  int64_t step;
  int64_t count;
  int64_t half;
};

// Sets order [n] to 0 .. n - 1, sorted by adapter and within an adapter by number.
void sort_by_adapter(const int32_t* adapters, int64_t n, int32_t* order);

// Immutable; any number of threads may call it, each with its own scratch.
class Lora {
 public:
  // a [A, L, S * r, k] and b [A, L, N, r] are f32, bf16 or f16; scaling is f32 [A].  Where a and b
  // are undefined, this weight has no adapters.
  Lora(Tensor a, Tensor b, Tensor scaling);

  bool defined() const { return a_.defined(); }
  // Columns of u, S * r; 0 when not defined().
  int64_t num_columns() const { return a_ ? a_.dim(2) : 0; }
  int64_t scratch_bytes() const;  // per thread

  static constexpr int64_t kMostRows = 32;  // weight rows of an expand()

  // Sets tile.u from the rows x [num_rows], which have k values of `dtype` each: f32, bf16, f16, or
  // fp8 or int8 codes with their scales.
  void shrink(const LoraTile& tile,
              const std::byte* const* x,
              DType dtype,
              const RowScales& scales,
              std::byte* scratch) const;

  // Adds to column j of each row of c [num_rows, ldc] what the adapter adds to weight row j of
  // `rows`.  REQUIRES: rows.count <= kMostRows.
  void expand(
      const LoraTile& tile, const LoraRows& rows, float* c, int64_t ldc, std::byte* scratch) const;

 private:
  struct Buffers;

  // n rows of a_ or b_: row 0 begins at element `first`, the others follow `stride` apart.
  struct Block {
    const Tensor& w;
    int64_t first;
    int64_t stride;
    int64_t n;
  };
  // Sets buffers.out [m, n] to the dot products of x[i] and row j of the block.
  void dot(const float* const* x, int64_t m, const Block& block, const Buffers& buffers) const;

  Tensor a_;
  Tensor b_;
  Tensor scaling_;
  const CpuKernels* kernels_;
};

}  // namespace moebius::cpu
