// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "router/simulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/parallel.h"
#include "core/splitmix64.h"

namespace moebius::router {

namespace {

using splitmix64::mix;
using splitmix64::next;

// A number in [0, n).  Probabilities differ by less than n / 2^32.
int64_t next_below(uint64_t& state, int64_t n) {
  return static_cast<int64_t>(((next(state) >> 32) * static_cast<uint64_t>(n)) >> 32);
}

// A number in [0, 1).
double next_unit(uint64_t& state) {
  return static_cast<double>(next(state) >> 11) * 0x1p-53;
}

void shuffle(uint64_t& state, int32_t* ids, int64_t n) {
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(ids[i], ids[next_below(state, i + 1)]);
  }
}

}  // namespace

Simulator::Simulator(const RouterConfig& config)
    : simulation_(config.simulation), topk_(config.topk), seed_(config.seed) {
  expert_of_rank_.resize(static_cast<size_t>(config.num_experts));
  std::iota(expert_of_rank_.begin(), expert_of_rank_.end(), 0);
  uint64_t state = mix(config.seed);
  shuffle(state, expert_of_rank_.data(), config.num_experts);
  for (int64_t r = 1; r <= config.num_experts; ++r) {
    mass_.push_back(std::pow(static_cast<double>(r), -config.zipf_exponent));
    total_mass_ += mass_.back();
  }
}

void Simulator::select(uint64_t call,
                       const Tensor& ids,
                       const Tensor& weights,
                       const Stream& stream) const {
  constexpr int64_t kGrain = 64;
  uint64_t call_state = mix(seed_) + call;
  const uint64_t call_key = next(call_state);
  parallel_for(stream, ids.dim(0), kGrain, [&](int64_t begin, int64_t end) {
    std::vector<bool> is_drawn(expert_of_rank_.size());
    for (int64_t t = begin; t < end; ++t) {
      const uint64_t state = mix(call_key + static_cast<uint64_t>(t));
      int32_t* row = ids.data<int32_t>() + t * topk_;
      simulation_ == Simulation::kZipf ? draw_zipf(state, row, is_drawn) : draw_uniform(state, row);
    }
  });
  std::fill_n(weights.data<float>(), weights.numel(), 1.0f / static_cast<float>(topk_));
}

// Floyd's sampling makes each set of K ids equally likely, and the shuffle each order of them.
void Simulator::draw_uniform(uint64_t state, int32_t* ids) const {
  const auto num_experts = static_cast<int64_t>(expert_of_rank_.size());
  int32_t* end = ids;
  for (int64_t top = num_experts - topk_; top < num_experts; ++top) {
    const auto drawn = static_cast<int32_t>(next_below(state, top + 1));
    const bool is_repeated = std::find(ids, end, drawn) != end;
    *end++ = is_repeated ? static_cast<int32_t>(top) : drawn;
  }
  shuffle(state, ids, topk_);
}

// Draws K experts without replacement.  Each draw walks along the mass that is left.
void Simulator::draw_zipf(uint64_t state, int32_t* ids, std::vector<bool>& is_drawn) const {
  int64_t ranks_end = 0;
  double mass_left = total_mass_;
  for (int64_t k = 0; k < topk_; ++k) {
    double left = next_unit(state) * mass_left;
    size_t drawn = 0;
    for (size_t r = 0; r < mass_.size(); ++r) {
      if (is_drawn[r]) {
        continue;
      }
      drawn = r;  // this stays the result when rounding lets the walk run past the end
      left -= mass_[r];
      if (left < 0.0) {
        break;
      }
    }
    is_drawn[drawn] = true;
    mass_left -= mass_[drawn];
    ids[ranks_end++] = static_cast<int32_t>(drawn);
  }
  for (int64_t k = 0; k < topk_; ++k) {
    const auto rank = static_cast<size_t>(ids[k]);
    is_drawn[rank] = false;
    ids[k] = expert_of_rank_[rank];
  }
}

}  // namespace moebius::router
