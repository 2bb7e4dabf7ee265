// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoRA beside an expert GEMM on a GPU.  The GEMM leaves f32 sums, to which the rows' adapters are
// added before they are rounded.  So rows without an adapter keep their bits.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"

namespace moebius::cuda {

// Says which adapter a row has: ids[token_of_row[r]], or ids[r] without token_of_row.  Ids outside
// [0, num_adapters) stand for none.
struct RowAdapters {
  const int32_t* ids;
  const int32_t* token_of_row;  // nullptr: rows are those of the ids
  int num_adapters;
};

struct LoraGemm {
  RowOperand a;    // [M, K], the rows of the GEMM
  Tensor lora_a;   // [A, G, halves * r, K]
  Tensor lora_b;   // [A, G, N, r]
  Tensor scaling;  // f32 [A]
  int halves = 1;
  bool is_interleaved = false;  // the rows of B's two halves alternate
  RowGroups rows;
  RowAdapters adapters;
  Tensor shrunk;  // scratch f32 [M, halves * r]
};

// Sets shrunk = A * a.  Does nothing where lora_a is undefined.
void lora_shrink(const LoraGemm& lora, const Stream& stream);
// Sets out = sums + scaling * B * shrunk, rounded.  sums is f32 [M, N].
void lora_expand(const LoraGemm& lora, const Tensor& sums, const Tensor& out, const Stream& stream);

}  // namespace moebius::cuda
