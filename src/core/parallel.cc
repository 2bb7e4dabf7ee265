// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// OpenMP provides the threads; in a build without it the calling thread does all the work.
#include "core/parallel.h"

#ifdef MOEBIUS_HAVE_OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

namespace moebius::detail {

void run_tasks(const Stream& stream, int64_t num_tasks, TaskFn fn, void* body) {
  const int num_threads = static_cast<int>(std::min<int64_t>(stream.num_threads(), num_tasks));
  if (num_threads <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) {
      fn(body, task, 0);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&](int thread_idx) {
    try {
      for (int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < num_tasks;
           task = next.fetch_add(1, std::memory_order_relaxed)) {
        fn(body, task, thread_idx);
      }
    } catch (...) {
      next.store(num_tasks, std::memory_order_relaxed);
      const std::lock_guard lock(error_mutex);
      if (!error) {
        error = std::current_exception();
      }
    }
  };
#ifdef MOEBIUS_HAVE_OPENMP
  // The runtime may grant fewer threads; the shared counter still hands out every task.
#pragma omp parallel num_threads(num_threads)
  { work(omp_get_thread_num()); }
#else
  work(0);
#endif
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace moebius::detail
