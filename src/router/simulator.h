// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Simulated routing: ids follow a distribution instead of logits (see Simulation).
// The ids of a token depend only on the seed, the call number and the token's index, so they are
// the same for any number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/router.h"

namespace moebius::router {

class Simulator {
 public:
  explicit Simulator(const RouterConfig& config);
  void select(uint64_t call, const Tensor& ids, const Tensor& weights, const Stream& stream) const;

 private:
  void draw_uniform(uint64_t state, int32_t* ids) const;
  // REQUIRES: is_drawn has E elements that are false.  They are false again afterwards.
  void draw_zipf(uint64_t state, int32_t* ids, std::vector<bool>& is_drawn) const;

  Simulation simulation_;
  int64_t topk_;
  uint64_t seed_;
  std::vector<int32_t> expert_of_rank_;  // by decreasing probability
  std::vector<double> mass_;             // r^-exponent for r = 1..E
  double total_mass_ = 0.0;
};

}  // namespace moebius::router
