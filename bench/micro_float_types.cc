// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Times conversions between float and the narrow types, element by element (Google Benchmark).
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "moebius/float_types.h"

namespace {

constexpr size_t kElements = 1 << 14;

std::vector<float> floats() {
  std::vector<float> values(kElements);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(i % 997) - 498.0f) * 0.013f;
  }
  return values;
}

template <typename T>
void from_float(benchmark::State& state) {
  const std::vector<float> in = floats();
  std::vector<T> out(in.size());
  for (auto _ : state) {
    for (size_t i = 0; i < in.size(); ++i) {
      out[i] = T(in[i]);
    }
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(in.size()));
}

template <typename T>
void to_float(benchmark::State& state) {
  std::vector<T> in;
  for (const float value : floats()) {
    in.push_back(T(value));
  }
  std::vector<float> out(in.size());
  for (auto _ : state) {
    for (size_t i = 0; i < in.size(); ++i) {
      out[i] = static_cast<float>(in[i]);
    }
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(in.size()));
}

BENCHMARK(from_float<moebius::BFloat16>);
BENCHMARK(from_float<moebius::Float16>);
BENCHMARK(from_float<moebius::F8E4M3>);
BENCHMARK(from_float<moebius::F8E5M2>);
BENCHMARK(to_float<moebius::BFloat16>);
BENCHMARK(to_float<moebius::Float16>);
BENCHMARK(to_float<moebius::F8E4M3>);
BENCHMARK(to_float<moebius::F8E5M2>);

}  // namespace

BENCHMARK_MAIN();
