// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the machine can do at best, measured: the two sides of a roofline.
#pragma once

#include <cstdint>
#include <string_view>

#include "moebius/stream.h"

namespace moebius::bench {

enum class Operand : uint8_t { kF32, kBF16, kInt8 };

struct ComputePeak {
  std::string_view name = "";  // "AMX bf16"
  double gflops = 0;           // of all the stream's threads together
};

// The fastest way this processor and build have to multiply such operands, f32 included.
ComputePeak compute_peak(Operand operand, const Stream& stream);

// Reading memory in order, far more of it than the last-level cache holds, by all threads.
double read_gb_per_s(const Stream& stream);

}  // namespace moebius::bench
