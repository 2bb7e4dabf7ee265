// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Handles of the C API: numbers that stand for objects, in one table.  A number is never given
// twice, so a handle that was destroyed or that is of another kind is found out, not followed.
// A process that was forked has copies of its parent's objects, which only the parent may use:
// their ends would tell other ranks that the parent has left, and wait for threads that the child
// does not have.  So the child's calls refuse them, and its destroying them does nothing.
// Thread-safety: any thread may call any function at any time.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "c_api/structs.h"
#include "moebius_c.h"

namespace moebius::c_api {

// Who is using an object.  Objects that one thread at a time may use together share one.
class Usage {
 public:
  // Throws InvalidArgument where a call is under way.
  void begin(std::string_view what);
  void end() noexcept;
  // Ends the object's life now, or at the end of the call that is under way.
  void release(std::shared_ptr<void> object) noexcept;

 private:
  std::mutex mutex_;
  bool is_used_ = false;
  std::thread::id user_;
  std::vector<std::shared_ptr<void>> condemned_;  // destroyed while in use
};

// Every object of the API derives from this.
struct Object {
  Object() : usage(std::make_shared<Usage>()) {}
  explicit Object(std::shared_ptr<Usage> shared) : usage(std::move(shared)) {}
  virtual ~Object() = default;

  std::shared_ptr<Usage> usage;
};

namespace detail {
uintptr_t enter(std::shared_ptr<Object> object, std::string_view kind);
// Throw InvalidArgument, which names `what`, for a number that stands for no object of this kind;
// find() does so for an object of a parent process, too, for which remove() gives null.
std::shared_ptr<Object> find(uintptr_t number, std::string_view kind, std::string_view what);
std::shared_ptr<Object> remove(uintptr_t number, std::string_view kind, std::string_view what);
}  // namespace detail

// T::kKind is a literal, "group"; T::Handle is the type in moebius_c.h.
template <typename T>
concept HandledObject = std::derived_from<T, Object> && requires {
  { T::kKind } -> std::convertible_to<std::string_view>;
  typename T::Handle;
};

template <HandledObject T>
typename T::Handle make_handle(std::shared_ptr<T> object) {
  return reinterpret_cast<typename T::Handle>(detail::enter(std::move(object), T::kKind));
}

template <HandledObject T>
std::shared_ptr<T> find(typename T::Handle handle, std::string_view what = T::kKind) {
  return std::static_pointer_cast<T>(
      detail::find(reinterpret_cast<uintptr_t>(handle), T::kKind, what));
}

// Null stands for no object.
template <HandledObject T>
std::shared_ptr<T> find_optional(typename T::Handle handle, std::string_view what = T::kKind) {
  return handle == nullptr ? nullptr : find<T>(handle, what);
}

// Null where a process that has forked this one has the object.
template <HandledObject T>
std::shared_ptr<Object> remove_handle(typename T::Handle handle) {
  return detail::remove(reinterpret_cast<uintptr_t>(handle), T::kKind, T::kKind);
}

template <HandledObject T>
void destroy_handle(typename T::Handle handle) {
  if (handle != nullptr) {
    auto object = remove_handle<T>(handle);
    if (object != nullptr) {
      const auto usage = object->usage;
      usage->release(std::move(object));
    }
  }
}

// An object in use by a call: it lives, and no other call uses it, as long as this does.
template <HandledObject T>
class Using {
 public:
  explicit Using(typename T::Handle handle) : Using(find<T>(handle)) {}
  explicit Using(std::shared_ptr<T> object) : usage_(object->usage), object_(std::move(object)) {
    usage_->begin(T::kKind);
  }
  ~Using() {
    if (usage_ != nullptr) {
      object_.reset();
      usage_->end();
    }
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

  T* operator->() const { return object_.get(); }
  T& operator*() const { return *object_; }
  const std::shared_ptr<T>& object() const { return object_; }

 private:
  std::shared_ptr<Usage> usage_;
  std::shared_ptr<T> object_;
};

}  // namespace moebius::c_api
