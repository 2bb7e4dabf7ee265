// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes ExpertWeights from an ExpertSource.  Each tensor is copied once, from the mapping to its
// place.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/expert_source.h"
#include "checkpoint/finite_weights.h"

namespace moebius::checkpoint {

// The part of the experts that a rank takes.
struct ExpertSlice {
  ExpertIds experts;
  Range intermediate;        // rows of gate and up, columns of w2
  bool adds_w2_bias = true;  // true on one rank of a TP group, since outputs are summed
};

// A part of a projection.  w1 and w2 are pieces on top of each other.
struct Piece {
  Projection projection = Projection::kDown;
  Range rows;  // of the projection, in elements
  Range cols;
};
std::vector<Piece> w1_pieces(const ExpertSource& source, Range intermediate);
std::vector<Piece> w2_pieces(const ExpertSource& source, Range intermediate);

// Loads weights as they are stored.  Throws what ExpertSource throws, and what FiniteWeights throws
// about NaN and infinity.
ExpertWeights load_experts(const ExpertSource& source,
                           const ExpertSlice& slice,
                           bool quantize_activations,
                           bool allows_nonfinite);

// Quantizes unquantized weights with the scheme `name` of load_quant_schemes(), expert by expert.
// Throws InvalidArgument where there is no such scheme or the weights are quantized already, and
// Unsupported where the scheme does not fit the sizes; NaN and infinity are as above.
ExpertWeights quantize_experts(const ExpertSource& source,
                               const ExpertSlice& slice,
                               const std::string& name,
                               bool allows_nonfinite);
// Puts the biases [L, N] of w1 and w2 into `quant`; does nothing when the family has none.
void load_biases(const ExpertSource& source,
                 const ExpertSlice& slice,
                 FiniteWeights& finite,
                 QuantConfig& quant);

}  // namespace moebius::checkpoint
