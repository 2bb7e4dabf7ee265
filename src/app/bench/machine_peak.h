// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the machine can do at best, measured: the two sides of a roofline.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "moebius/stream.h"

namespace moebius::bench {

enum class Operand : uint8_t { kF32, kBF16, kInt8, kFp8 };

struct ComputePeak {
  std::string_view name = "";  // "AMX bf16"
  double gflops = 0;           // of all the stream's threads together, or of its GPU
};

// The best of a few tries, since what disturbs can only slow down; or, among ranks of a machine
// that all measure now, the median: the last of them has the machine to itself.
enum class Take : uint8_t { kBest, kMedian };

// The fastest way this processor and build have to multiply such operands, f32 included, and bf16
// where operands are fp8; of a GPU its tensor cores.
ComputePeak compute_peak(Operand operand, const Stream& stream, Take take = Take::kBest);

// Reading memory in order, far more of it than the last-level cache holds, by all threads.
// num_ranks: that do so now, each its part of it.
double read_gb_per_s(const Stream& stream, Take take = Take::kBest, int num_ranks = 1);

// Both rates of a CPU, taken by turns with what is compared with them.  Why: neighbours and clocks
// change what a machine can do from one second to the next, by more than what is to be seen.
class PeakBursts {
 public:
  PeakBursts(Operand operand, const Stream& stream);
  ~PeakBursts();

  // "AMX bf16"
  std::string_view name() const;

  struct Rates {
    double gflops = 0;
    double read_gb_per_s = 0;
  };
  // Of the next 10 ms or so.
  Rates next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius::bench
