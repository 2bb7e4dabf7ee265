// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loops that run on the threads of a CPU stream.  Bodies write disjoint outputs, and the split of
// the work depends on the number of threads only where results cannot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "moebius/stream.h"

namespace moebius {

namespace detail {
using TaskFn = void (*)(void* body, int64_t task, int thread_idx);
void run_tasks(const Stream& stream, int64_t num_tasks, TaskFn fn, void* body);
}  // namespace detail

// Calls body(task, thread_idx) for every task in [0, num_tasks).  Tasks are handed out in order,
// and thread_idx is in [0, stream.num_threads()).  Returns when all tasks are done.  The first
// exception is rethrown here, and tasks that have not started are then skipped.  With a single task
// or thread the caller does the work.
template <typename Body>
void parallel_tasks(const Stream& stream, int64_t num_tasks, Body&& body) {
  using Fn = std::remove_reference_t<Body>;
  detail::run_tasks(
      stream, num_tasks,
      [](void* b, int64_t task, int thread_idx) { (*static_cast<Fn*>(b))(task, thread_idx); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Calls body(begin, end) for blocks of `grain` elements of [0, n); the last block may be shorter.
template <typename Body>
void parallel_for(const Stream& stream, int64_t n, int64_t grain, Body&& body) {
  const int64_t num_blocks = (n + grain - 1) / grain;
  parallel_tasks(stream, num_blocks, [&](int64_t block, int) {
    body(block * grain, std::min(n, (block + 1) * grain));
  });
}

}  // namespace moebius
