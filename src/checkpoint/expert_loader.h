// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// From an ExpertSource to ExpertWeights: each tensor is copied once, from the mapping to its place.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/expert_source.h"

namespace moebius::checkpoint {

// Which part of the experts a rank takes.
struct ExpertSlice {
  Range experts;
  Range intermediate;        // rows of gate and up, columns of w2
  bool adds_w2_bias = true;  // one rank of a TP group does, since outputs are summed
};

// A matrix of the file as part of w1 or w2 (which stack their pieces): logical rows and columns.
struct Piece {
  Projection projection = Projection::kDown;
  Range rows;
  Range cols;
};
std::vector<Piece> w1_pieces(const ExpertSource& source, Range intermediate);
std::vector<Piece> w2_pieces(const ExpertSource& source, Range intermediate);

// How experts with these tensors (none: of any) compute.  quantize_activations: as the scheme says,
// else not.
QuantConfig stored_quant_config(const WeightScheme& scheme,
                                bool quantize_activations,
                                QuantTensors tensors);

// As stored.  quantize_activations: as the scheme says, else not.
ExpertWeights load_experts(const ExpertSource& source,
                           const ExpertSlice& slice,
                           bool quantize_activations);

// The scheme `name` (load_quant_schemes) from unquantized weights, expert by expert.  Throws
// InvalidArgument: no such scheme, or the weights are quantized.
ExpertWeights quantize_experts(const ExpertSource& source,
                               const ExpertSlice& slice,
                               const std::string& name);
// Biases [L, N] of w1 and w2 into config; nothing when the family has none.
void load_biases(const ExpertSource& source, const ExpertSlice& slice, QuantConfig& quant);

}  // namespace moebius::checkpoint
