// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The loop of the files that measure an instruction set.
// Why an unnamed namespace: each of these files is compiled with other flags, so they may share no
// function that the linker could merge.
#pragma once

#include <cstddef>
#include <cstdint>

#include "app/bench/peak_kernels.h"

namespace moebius::bench {
namespace {

// Computes sum = step(sum) in `rounds` rounds.  kChains sums that do not depend on each other hide
// the latency of a step.  Returns the number of operations, of which a step has `per_step`.
template <typename Vector, size_t kChains, typename Step>
int64_t run_chains(int64_t rounds, int64_t per_step, const Step& step) {
  Vector sum[kChains] = {};
  for (Vector& chain : sum) {
    asm volatile("" : "+v"(chain));  // or the compiler sees that all chains are the same
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kChains; ++i) {
      sum[i] = step(sum[i]);
    }
  }
  for (const Vector& chain : sum) {
    asm volatile("" : : "v"(chain));  // or the compiler drops the loop
  }
  return rounds * static_cast<int64_t>(kChains) * per_step;
}

// The same with multiply-adds of f32.  Two per cycle need 12 chains.
template <typename Vector, typename MultiplyAdd>
int64_t run_fma(int64_t rounds, Vector a, Vector b, const MultiplyAdd& multiply_add) {
  return run_chains<Vector, 12>(rounds, 2 * sizeof(Vector) / sizeof(float),
                                [&](Vector sum) { return multiply_add(sum, a, b); });
}

}  // namespace
}  // namespace moebius::bench
