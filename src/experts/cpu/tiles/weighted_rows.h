// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What makes the output of tile experts final (WeightAndReduceKind::kNoOp): GEMM2 leaves its rows
// weighted (TileEpilogue::weights), then the rows of a token are added.  Together they have the
// bits of kContiguous.
#pragma once

#include "experts/permute.h"
#include "moebius/experts.h"

namespace moebius::cpu {

// weights[r] = the router's weight of row r in computing order, or 1 where it is on the input.
void fill_row_weights(const ExpertsInput& input,
                      const RowOrder& order,
                      float* weights,
                      const Stream& stream);

// output [M, H] = sums over the slots [M * K, H] of each token that are computed here.
void sum_weighted_rows(const ExpertsInput& input,
                       const Tensor& slots,
                       const Tensor& output,
                       const Stream& stream);

}  // namespace moebius::cpu
