// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ParallelExecutor: whose threads run the parallel loops of calls on CPU streams.  Without one,
// each calling thread has a team of threads of the library's, which spin for work between calls.
// Results do not depend on who runs a loop, bit for bit.
// Thread-safety: set_parallel_executor() may be called from any thread at any time.
#pragma once

#include <memory>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

class ParallelExecutor {
 public:
  // A share of a loop.  The shares of one loop take its tasks from a common counter, so a loop is
  // done whenever one of them has ended, and more of them make it faster.
  using Job = void (*)(void* context, int thread_idx) noexcept;

  virtual ~ParallelExecutor() = default;

  // Calls job(context, i) on any threads, each i of [0, num_threads) at most once and at least one
  // of them, and returns when all calls that began have ended; what they wrote is then visible to
  // the caller.  num_threads is at least 2.  Threads that call the library for different ranks call
  // this at the same time, and no call may wait for another one, since ranks wait for each other
  // between loops.  The best executor is one whose threads are awake already: the loops of a layer
  // follow each other within 10 us.  May throw before it has called any job; the caller of the
  // library sees that exception.
  virtual void run(int num_threads, Job job, void* context) = 0;
};

// From now on loops run there; null brings the library's own threads back.  Loops under way end
// where they began, and an executor is kept until its last loop has ended.
void set_parallel_executor(std::shared_ptr<ParallelExecutor> executor);

}  // namespace moebius
