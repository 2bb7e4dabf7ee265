// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Task: a coroutine that yields its turn while its rows travel.
//
//   Task call() {
//     Pending<Rows> rows = send();
//     co_yield Travel{rows.hook};  // others have their turn, then the hook runs
//     compute(rows.receive());
//   }
//
// A coroutine that runs others gives up its turn where they do:
//
//   while (inner.step()) {
//     co_yield Sent{};
//   }
//
// A coroutine takes its arguments by value, because it outlives the expression that calls it and so
// any temporaries that it was given by reference.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <utility>

namespace moebius {

struct Travel {
  std::function<void()> hook;       // completes the transfer; may be empty
  std::function<void()> meanwhile;  // computes while rows travel, before the hook; may be empty
};

// Rows are on their way, and the coroutine has no hook for them itself.
struct Sent {};

// A Task owns the coroutine's frame, so destroying it ends the coroutine where it stands.
class Task {
 public:
  struct promise_type {  // NOLINT(readability-identifier-naming): the language asks for this name
    Travel travel;
    std::exception_ptr error;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(Travel way) {
      travel = std::move(way);
      return {};
    }
    std::suspend_always yield_value(Sent) { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) {
      handle_.destroy();
    }
  }

  bool is_under_way() const { return handle_ && !handle_.done(); }

  // Completes the transfer that the coroutine waits for, unless that has been done.
  void run_hook() {
    if (const auto hook = std::exchange(handle_.promise().travel.hook, nullptr)) {
      hook();
    }
  }
  // Runs the coroutine until it yields its turn or is done; throws what it throws.
  // REQUIRES: is_under_way().
  void run_turn() {
    if (const auto meanwhile = std::exchange(handle_.promise().travel.meanwhile, nullptr)) {
      meanwhile();
    }
    run_hook();
    handle_.resume();
    if (handle_.promise().error) {
      std::rethrow_exception(handle_.promise().error);
    }
  }
  // The same; whether it has yielded its turn, and is not done.
  bool step() {
    run_turn();
    return is_under_way();
  }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Task(Handle handle) : handle_(handle) {}

  Handle handle_;
};

}  // namespace moebius
