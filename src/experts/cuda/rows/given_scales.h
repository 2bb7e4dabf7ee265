// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GivenScales: the scales that a call brings for the rows of GEMM2 (ExpertsInput::a2_scale), one
// for each row of its input.
#pragma once

#include <cstdint>

#include "core/cuda/signal_word.h"

namespace moebius::cuda {

struct GivenScales {
  const float* of_input = nullptr;     // null: the call brings none
  const int32_t* input_row = nullptr;  // [rows]; null: row r comes from row r of the input

  MOEBIUS_HOST_DEVICE constexpr bool are_given() const { return of_input != nullptr; }
  MOEBIUS_HOST_DEVICE constexpr float of(int64_t row) const {
    return of_input[input_row != nullptr ? input_row[row] : row];
  }
};

}  // namespace moebius::cuda
