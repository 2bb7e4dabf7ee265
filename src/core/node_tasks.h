// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops whose tasks read memory of one node each (core/numa.h).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "core/numa.h"
#include "core/parallel.h"

namespace moebius {

// Calls body(task, thread_idx) for every task in [0, num_tasks), as parallel_tasks() does.  A
// thread takes the tasks of the node that it is on, in their order, and then those that other nodes
// have left.  node_of(task) is in [0, placement.num_homes()).  So tasks that wait for others of
// lower numbers (core/countdown.h) must wait for tasks of their own node only.  When a task throws,
// those of other threads go on.
template <typename NodeOf, typename Body>
void parallel_tasks_by_node(const Stream& stream,
                            int64_t num_tasks,
                            const NumaPlacement& placement,
                            NodeOf node_of,
                            Body&& body) {
  constexpr int kMostNodes = 64;
  const int homes = placement.num_homes();
  if (homes == 1 || homes > kMostNodes || stream.num_threads() == 1) {
    return parallel_tasks(stream, num_tasks, body);
  }
  struct alignas(64) Cursor {  // one cache line each
    std::atomic<int64_t> next{0};
  };
  std::array<Cursor, kMostNodes> cursors;
  const int64_t num_workers = std::min<int64_t>(stream.num_threads(), num_tasks);
  parallel_tasks(stream, num_workers, [&](int64_t, int thread_idx) {
    const int here = placement.nodes().here();
    for (int i = 0; i < homes; ++i) {
      const int node = (here + i) % homes;
      std::atomic<int64_t>& next = cursors[static_cast<size_t>(node)].next;
      for (int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < num_tasks;
           task = next.fetch_add(1, std::memory_order_relaxed)) {
        if (node_of(task) == node) {
          body(task, thread_idx);
        }
      }
    }
  });
}

}  // namespace moebius
