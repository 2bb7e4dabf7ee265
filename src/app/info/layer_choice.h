// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds out what would compute a layer of a checkpoint.  It asks for the decisions that the layer
// itself makes, before there is one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/checkpoint.h"

namespace moebius::app {

// The rows of each expert for which `info` says how a GPU multiplies many.
inline constexpr double kManyRows = 4096;

// Either a name or a reason is empty.
struct Choice {
  std::string name;
  std::string reason;  // why nothing does
};

struct LayerChoice {
  std::string format;       // of the weights: "fp8 128x128", "bf16"
  std::string computed_in;  // weights and activations, as `run` prints it
  Choice router;            // on the CPU
  Choice cpu;               // the implementation of the experts
  // The kernels of a Hopper GPU for GEMM1 / GEMM2, one name where they are alike; for a row of each
  // expert and for many.
  Choice gpu_one_row;
  Choice gpu_many_rows;
};

// Loads these experts of the layer, and what it has beside experts.  Throws what load_layer()
// throws.
LayerChoice choose_for(const Checkpoint& checkpoint,
                       int64_t layer,
                       const std::vector<int64_t>& experts);

// The kernel that a line of plan::gemm_lines() names, without sizes and reasons.
std::string kernel_of(const std::string& gemm_line);

}  // namespace moebius::app
