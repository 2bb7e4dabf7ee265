// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CallerFunction: a function of the caller's that any thread may call while another replaces it.
// Thread-safety: any thread may call any function.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace moebius {

template <typename Function>
class CallerFunction {
 public:
  // Calls visit(function), unless there is none, or this thread is in the function already.
  // Returns whether it did.
  template <typename Visit>
  bool call(const Visit& visit) {
    if (is_inside()) {
      return false;
    }
    std::shared_ptr<const Function> function;
    {
      const std::lock_guard lock(mutex_);
      function = function_;
    }
    if (function == nullptr) {
      return false;
    }
    const Inside inside;
    visit(*function);
    return true;
  }

  // Returns when no other thread is in the function before, so that what it uses may go.  Where the
  // function itself calls this, its own call goes on, and nobody is waited for.
  // `is_set`, if given, says from then on whether there is a function.
  void replace(Function next, std::atomic<bool>* is_set = nullptr) {
    std::shared_ptr<const Function> function;
    if (next) {
      function = std::make_shared<const Function>(std::move(next));
    }
    {
      const std::lock_guard lock(mutex_);
      function_.swap(function);
      if (is_set != nullptr) {
        is_set->store(function_ != nullptr, std::memory_order_relaxed);
      }
    }
    const std::weak_ptr<const Function> before = function;
    function.reset();
    while (!is_inside() && !before.expired()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  static bool& is_inside() {
    static constinit thread_local bool value = false;
    return value;
  }
  struct Inside {
    Inside() { is_inside() = true; }
    ~Inside() { is_inside() = false; }
  };

  std::mutex mutex_;
  std::shared_ptr<const Function> function_;
};

}  // namespace moebius
