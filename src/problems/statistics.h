// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Order statistics of measurements.
#pragma once

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <vector>

namespace moebius::app {

// The value below which `fraction` of the samples lie, interpolated linearly between neighbours.
// REQUIRES: at least one sample.
inline double quantile(std::vector<double> samples, double fraction) {
  assert(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const double place = fraction * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, samples.size() - 1);
  const double weight = place - static_cast<double>(below);
  return samples[below] * (1 - weight) + samples[above] * weight;
}

inline double microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

inline double median(std::vector<double> samples) {
  return quantile(std::move(samples), 0.5);
}

}  // namespace moebius::app
