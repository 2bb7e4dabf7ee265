// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoRA beside an expert GEMM on a GPU: the GEMM leaves f32 sums, to which the rows' adapters are
// added before they are rounded.  So rows without adapter keep their bits.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"

namespace moebius::cuda {

// Which adapter a row has: ids[token_of_row[r]], or ids[r] without token_of_row.
// Ids out of [0, num_adapters) stand for none.
struct RowAdapters {
  const int32_t* ids;
  const int32_t* token_of_row;  // nullptr: rows are those of the ids
  int num_adapters;
};

struct LoraGemm {
  RowOperand a;    // [M, K], of the GEMM
  Tensor lora_a;   // [A, G, halves * r, K]
  Tensor lora_b;   // [A, G, N, r]
  Tensor scaling;  // f32 [A]
  int halves = 1;
  bool is_interleaved = false;  // of two halves: rows of B alternate
  RowGroups rows;
  RowAdapters adapters;
  Tensor shrunk;  // scratch f32 [M, halves * r]
};

// shrunk = A * a.  lora_a may be undefined: nothing happens.
void lora_shrink(const LoraGemm& lora, const Stream& stream);
// out = sums + scaling * B * shrunk, rounded.  sums f32 [M, N].
void lora_expand(const LoraGemm& lora, const Tensor& sums, const Tensor& out, const Stream& stream);

}  // namespace moebius::cuda
