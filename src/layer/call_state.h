// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a LayerCall drives, and how an object has one call at a time.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "layer/task.h"
#include "moebius/error.h"
#include "moebius/layer_call.h"

namespace moebius {

// Lets one call at a time be under way on an object.
class OneCall {
 public:
  // Marks the object as called until the result is gone.  Throws InvalidArgument if it is marked.
  std::shared_ptr<void> begin(std::string_view what) {
    expect(mark_.expired(), [&] {
      return std::string(what) + " is called while a call of it is under way: step that to its " +
             "end or drop it first";
    });
    auto mark = std::make_shared<char>();
    mark_ = mark;
    return mark;
  }

 private:
  std::weak_ptr<void> mark_;
};

struct LayerCall::State {
  // tell_peers: tells other ranks why they wait in vain; empty where there are none.
  State(Task body, std::shared_ptr<void> call_mark, std::function<void(std::string_view)> tell)
      : mark(std::move(call_mark)), task(std::move(body)), tell_peers(std::move(tell)) {}
  // Tells the peers before the transfers under way are given up, since the first news counts.
  ~State();

  std::shared_ptr<void> mark;  // outlives the task, which uses the object that is marked
  Task task;
  std::function<void(std::string_view)> tell_peers;
  bool has_begun = false;
};

}  // namespace moebius
