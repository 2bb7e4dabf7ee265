// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of activations times a block of rows of one expert's weight, on the calling thread.
//
// How the product is computed is decided by the operand, the weight and the number of rows:
//   i8    codes by exact integer dot products; by oneDNN where it has VNNI or AMX kernels.
//   bf16  (with oneDNN on AVX-512 BF16 or AMX) both operands as they are.
//   f32   weights as the f32 values they stand for.  bf16 and f32 weights are read in place, all
//         others (fp8, int4, mx, nvfp4, int8 of w8a16, f16: no arithmetic for them in AVX2) are
//         decoded block by block into scratch.
// oneDNN serves full tiles of rows; what is left, and experts with few rows, goes to the dot
// products of kernels.h, which read weights once at memory speed.  On AVX2 the two are equally fast
// at about 32 rows and oneDNN is 1.2 to 1.4 times faster from 64 on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "core/scratch.h"
#include "experts/cpu/kernels.h"
#include "experts/cpu/onednn_matmul.h"
#include "moebius/quantize.h"

namespace moebius::cpu {

// Rows [first, first + count) of an expert's weight; their products go to columns
// [column, column + count) of C.
struct WeightRange {
  int64_t first;
  int64_t count;
  int64_t column;
};

class BlockGemm {
 public:
  struct Config {
    Tensor weight;  // [L, N, k]
    QuantDesc desc;
    Tensor a_gscale;      // see dequantize_weight_rows
    int64_t gate_rows;    // see dequantize_weight_rows
    DType operand;        // f32, bf16 or i8: dtype of the activations
    bool use_onednn;      // worth it where onednn_has_native(operand)
    int64_t range_rows;   // count of a full range
    int64_t range_total;  // rows that ranges of range_rows divide up; the last may be shorter
    int64_t max_columns;  // of C, and its row stride
  };

  explicit BlockGemm(Config config);

  int64_t k() const { return config_.weight.dim(2); }
  // Up to this many rows run() needs no full range: it calls the dot products only.
  int64_t most_dot_rows() const;
  // Per thread, for run().
  int64_t scratch_bytes() const;

  // c [m, max_columns] f32 (i32 for i8 operands) = a[i] . weight row of local expert e.
  // REQUIRES: the ranges' columns are disjoint and below max_columns.
  void run(int64_t e,
           std::span<const WeightRange> ranges,
           const void* const* a,
           int64_t m,
           void* c,
           std::byte* scratch) const;

 private:
  struct Buffers;

  bool in_place() const;
  const void* stored(int64_t e, int64_t row) const;
  void decode(int64_t e, const WeightRange& range, int64_t begin, int64_t end, float* out) const;
  void dot(int64_t e,
           const WeightRange& range,
           const void* const* a,
           int64_t m,
           void* c,
           const Buffers& buffers) const;
  int64_t run_tiles(int64_t e,
                    std::span<const WeightRange> ranges,
                    const void* const* a,
                    int64_t m,
                    float* c,
                    const Buffers& buffers) const;

  Config config_;
  const CpuKernels* kernels_;
#ifdef MOEBIUS_HAVE_ONEDNN
  std::map<std::pair<int64_t, int64_t>, OnednnMatmul> matmuls_;  // by rows and count of a range
#endif
};

}  // namespace moebius::cpu
