// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A shared counter hands out the tasks, so every one is done by whichever threads there are.
#include "core/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>

#include "core/loop_times.h"
#include "core/worker_team.h"
#include "moebius/error.h"

namespace moebius::detail {

namespace {

struct Loop {
  const int64_t num_tasks;
  const TaskFn fn;
  void* const body;
  std::atomic<int64_t> next{0};
  std::mutex mutex;  // guards error
  std::exception_ptr error;
  std::optional<LoopClock::Loop> times;  // while somebody measures

  void work(int thread_idx) noexcept {
    if (times) {
      times->thread_began();
    }
    run_tasks(thread_idx);
    if (times) {
      times->thread_ended();
    }
  }

  void run_tasks(int thread_idx) noexcept {
    try {
      for (int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < num_tasks;
           task = next.fetch_add(1, std::memory_order_relaxed)) {
        fn(body, task, thread_idx);
      }
    } catch (...) {
      next.store(num_tasks, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!error) {
        error = std::current_exception();
      }
    }
  }
};

}  // namespace

void run_tasks(const Stream& stream, int64_t num_tasks, TaskFn fn, void* body) {
  const int num_threads = static_cast<int>(std::min<int64_t>(stream.num_threads(), num_tasks));
  if (num_threads <= 1 || !worker_team::may_run()) {
    for (int64_t task = 0; task < num_tasks; ++task) {
      fn(body, task, 0);
    }
    return;
  }
  Loop loop{.num_tasks = num_tasks,
            .fn = fn,
            .body = body,
            .next = 0,
            .mutex = {},
            .error = {},
            .times = {}};
  LoopClock* const clock = LoopClock::current();
  if (clock != nullptr) {
    loop.times.emplace(num_threads);
  }
  worker_team::run(
      num_threads,
      [](void* context, int thread_idx) noexcept { static_cast<Loop*>(context)->work(thread_idx); },
      &loop);
  if (clock != nullptr) {
    loop.times->end(*clock);
  }
  if (loop.error) {
    std::rethrow_exception(loop.error);
  }
  if (const int64_t begun = loop.next.load(std::memory_order_relaxed); begun < num_tasks) {
    throw Error(
        fmt::format("the parallel executor ended a loop after {} of {} tasks", begun, num_tasks));
  }
}

}  // namespace moebius::detail
