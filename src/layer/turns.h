// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns: who of several tasks runs when.  They go round in order, each until it gives up its turn;
// who is done makes room for the next that has not begun.  The order follows from the numbers
// alone, never from what has arrived, so ranks that run as many tasks make the same calls in the
// same order.
#pragma once

#include <functional>
#include <vector>

#include "layer/task.h"

namespace moebius {

class Turns {
 public:
  // At most max_in_flight tasks have begun and are not done.
  // hooks_enqueue: hooks do not wait on the host, see before_send().
  Turns(int max_in_flight, bool hooks_enqueue)
      : max_in_flight_(max_in_flight), hooks_enqueue_(hooks_enqueue) {}

  // Runs make(0), ..., make(count - 1).  What one of them throws ends the others and is thrown.
  void run(int count, const std::function<Task(int)>& make);

  // To be called by a task before it sends.  A hook that enqueues belongs before the send, or what
  // it receives would wait for that; one that waits belongs after it, so it runs when the turn of
  // its task comes.
  void before_send();

 private:
  int max_in_flight_;
  bool hooks_enqueue_;
  std::vector<Task> tasks_;
  const Task* running_ = nullptr;  // it alone is not suspended, so nothing may be asked of it
};

}  // namespace moebius
