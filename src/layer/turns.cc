// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/turns.h"

#include <algorithm>

namespace moebius {

void Turns::run(int count, const std::function<Task(int)>& make) {
  // Why not in a handler: a transfer that is destroyed during unwinding leaves it to the owner of
  // the exception to tell the peers the reason.
  struct EndAll {
    std::vector<Task>& tasks;
    ~EndAll() { tasks.clear(); }
  } const end_all{tasks_};
  tasks_.resize(static_cast<size_t>(std::min(count, max_in_flight_)));
  int next = 0;
  bool is_under_way = true;
  while (is_under_way) {
    is_under_way = false;
    for (Task& task : tasks_) {
      running_ = &task;
      if (task.is_under_way()) {
        task.run_turn();
      }
      while (!task.is_under_way() && next < count) {
        task = make(next++);
        task.run_turn();
      }
      running_ = nullptr;
      is_under_way = is_under_way || task.is_under_way();
    }
  }
}

void Turns::before_send() {
  if (hooks_enqueue_) {
    for (Task& task : tasks_) {
      if (&task != running_ && task.is_under_way()) {
        task.run_hook();
      }
    }
  }
}

}  // namespace moebius
