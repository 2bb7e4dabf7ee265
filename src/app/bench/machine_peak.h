// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures what the machine can do at best: the two sides of a roofline.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "moebius/stream.h"

namespace moebius::bench {

enum class Operand : uint8_t { kF32, kBF16, kInt8, kFp8 };

struct ComputePeak {
  std::string_view name = "";  // "AMX bf16"
  double gflops = 0;           // of all threads of the stream together, or of its GPU
};

// Which of a few measurements is the result.  The best one is, since disturbances can only slow
// down.  Where all ranks of a machine measure at the same time, the median is, since the last rank
// to finish has the machine to itself for a while.
enum class Take : uint8_t { kBest, kMedian };

// Measures the fastest way of this processor and build to multiply such operands.  f32 is always
// among the ways, and bf16 stands for fp8.  On a GPU it measures the tensor cores.
ComputePeak compute_peak(Operand operand, const Stream& stream, Take take = Take::kBest);

// How fast all threads together read memory in order, far more of it than the last-level cache
// holds. num_ranks: how many ranks measure at the same time, of which each reads its part.
double read_gb_per_s(const Stream& stream, Take take = Take::kBest, int num_ranks = 1);

// PeakBursts: measures both rates of a CPU in short bursts, between the calls that are compared
// with them.  Why: neighbours and clocks change from one second to the next what a machine can do,
// by more than the differences that a benchmark looks for.
class PeakBursts {
 public:
  PeakBursts(Operand operand, const Stream& stream);
  ~PeakBursts();

  // The name of the kernel, as in "AMX bf16".
  std::string_view name() const;

  struct Rates {
    double gflops = 0;
    double read_gb_per_s = 0;
  };
  // Measures for about 10 ms.
  Rates next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius::bench
