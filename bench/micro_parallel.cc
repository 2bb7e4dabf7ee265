// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This times two parallel loops: one has empty tasks, and each task of the other takes some
// microseconds.
#include <benchmark/benchmark.h>

#include <chrono>

#include "core/backoff.h"
#include "core/parallel.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;

// One task for each thread.
void empty_loop(benchmark::State& state) {
  const Stream stream = Stream::cpu(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    parallel_tasks(stream, stream.num_threads(), [](int64_t, int) {});
  }
}

// The second argument is how long a task takes in us, the third how long the caller is busy alone
// between two loops.
void loop_of_tasks(benchmark::State& state) {
  const auto stay_busy = [](std::chrono::microseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
      cpu_relax();
    }
  };
  const Stream stream = Stream::cpu(static_cast<int>(state.range(0)));
  const std::chrono::microseconds task_time(state.range(1));
  const std::chrono::microseconds pause(state.range(2));
  for (auto _ : state) {
    parallel_tasks(stream, 2 * stream.num_threads(), [&](int64_t, int) { stay_busy(task_time); });
    stay_busy(pause);
  }
}

BENCHMARK(empty_loop)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(loop_of_tasks)->Args({2, 5, 0})->Args({2, 5, 50})->Args({2, 5, 1000})->UseRealTime();

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
