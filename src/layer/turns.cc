// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/turns.h"

#include <algorithm>

namespace moebius {

void Turns::begin(int count, std::function<Task(int)> make) {
  count_ = count;
  next_ = 0;
  turn_ = 0;
  make_ = std::move(make);
  tasks_.clear();
  tasks_.resize(static_cast<size_t>(std::min(count, max_in_flight_)));
}

bool Turns::step() {
  // Why not in a handler: a transfer that is destroyed during unwinding leaves it to the owner of
  // the exception to tell the peers the reason.
  struct EndAll {
    std::vector<Task>& tasks;
    bool has_more = false;
    ~EndAll() {
      if (!has_more) {
        tasks.clear();
      }
    }
  } all{tasks_};
  // A task that is done stays done, so after one round without a send nothing is left.
  for (size_t looks = tasks_.size(); looks > 0 && !all.has_more; --looks) {
    Task& task = tasks_[turn_];
    turn_ = (turn_ + 1) % tasks_.size();
    running_ = &task;
    if (task.is_under_way()) {
      task.run_turn();
    }
    while (!task.is_under_way() && next_ < count_) {
      task = make_(next_++);
      task.run_turn();
    }
    running_ = nullptr;
    all.has_more = task.is_under_way();
  }
  return all.has_more;
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
