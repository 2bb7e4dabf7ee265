// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns: runs several tasks in turn.  They take turns in order, each until it yields, and a task
// that is done makes room for the next one that has not begun.  The order depends on the number of
// tasks alone and never on what has arrived, so ranks that run equally many tasks make the same
// calls in the same order.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "layer/task.h"

namespace moebius {

class Turns {
 public:
  // max_in_flight: how many tasks may have begun and not yet be done.
  // hooks_enqueue: hooks do not wait on the host, see before_send().
  Turns(int max_in_flight, bool hooks_enqueue)
      : max_in_flight_(max_in_flight), hooks_enqueue_(hooks_enqueue) {}

  // From now on step() runs make(0), ..., make(count - 1).
  void begin(int count, std::function<Task(int)> make);
  // Gives turns until a task has yielded its own; false when all tasks are done.  If one throws,
  // the others end and the exception is passed on.
  bool step();
  void run(int count, std::function<Task(int)> make) {
    begin(count, std::move(make));
    while (step()) {
    }
  }

  // A task calls this before it sends.  It runs the hooks of the other tasks if hooks enqueue:
  // after the send, what they receive would wait for that send.  A hook that waits on the host
  // should come after the send, so it runs when the turn of its own task comes.
  void before_send();

 private:
  int max_in_flight_;
  bool hooks_enqueue_;
  int count_ = 0;
  int next_ = 0;  // the next task to be made
  std::function<Task(int)> make_;
  std::vector<Task> tasks_;
  size_t turn_ = 0;                // the task whose turn it is
  const Task* running_ = nullptr;  // not suspended, so none of its functions may be called
};

}  // namespace moebius
