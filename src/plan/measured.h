// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Times of whole experts that were measured on one H200, and how forecasts use them.  The formulas
// of stages.cc know rates; a scheme's kernels keep them up differently with few rows, with small
// sizes, and with what runs between the GEMMs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "moebius/dtype.h"
#include "plan/deployment.h"
#include "plan/machine.h"

namespace moebius::plan {

// One call of the experts of a GPU, which compute all selections of all tokens: the order of rows,
// both GEMMs, the activation and the sums of a token's rows.
struct MeasuredExperts {
  std::string_view scheme;  // Formats::name
  DType dtype;              // of the layer
  int64_t hidden, intermediate, num_experts, topk;
  int64_t tokens;
  double us;

  double touched_experts() const;  // that have rows, where all are equally likely
  double rows_of_expert() const { return static_cast<double>(tokens * topk) / touched_experts(); }
};
// The tables in docs/performance/gpu_experts.md, "Whole experts".
std::span<const MeasuredExperts> measured_experts();

// The times that the formulas have for experts like these are to be multiplied by this.  It is what
// the formulas, with the figures of `machine`, are off by in the measured cases of the same scheme
// and the same kind of GEMM; cases that are closer in rows and sizes count for more.  Schemes that
// were not measured in f16 are taken to be off as in bf16.  1 where nothing like it was measured.
double measured_correction(const Deployment& deployment,
                           int64_t intermediate,
                           double rows_of_expert,
                           const Machine& machine);

}  // namespace moebius::plan
