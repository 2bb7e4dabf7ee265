// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These functions make the output of tile experts final (WeightAndReduceKind::kNoOp): GEMM2 leaves
// its rows weighted (TileEpilogue::weights), then the rows of a token are added.  The result has
// the bits of kContiguous.
#pragma once

#include "experts/permute.h"
#include "moebius/experts.h"

namespace moebius::cpu {

// Sets weights[r] to the router's weight of row r in computing order, or to 1 where the weight is
// already on the input.
void fill_row_weights(const ExpertsInput& input,
                      const RowOrder& order,
                      float* weights,
                      const Stream& stream);

// Sets output [M, H] to the sum, for each token, of those of its slots [M * K, H] that are computed
// here.
void sum_weighted_rows(const ExpertsInput& input,
                       const Tensor& slots,
                       const Tensor& output,
                       const Stream& stream);

}  // namespace moebius::cpu
