// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/handles.h"

#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <new>
#include <unordered_map>

#include "moebius/log.h"

namespace moebius::c_api {

void Usage::begin(std::string_view what) {
  const std::lock_guard lock(mutex_);
  expect(!is_used_, [&] {
    return fmt::format(
        "this {} is in use by {}, expected one call at a time (a group and what is made from it "
        "count as one object)",
        what,
        user_ == std::this_thread::get_id() ? "a call of this thread that is not over"
                                            : "another thread");
  });
  is_used_ = true;
  user_ = std::this_thread::get_id();
}

void Usage::end() noexcept {
  // Objects end while nobody else can use what they touch.
  for (;;) {
    std::vector<std::shared_ptr<void>> condemned;
    {
      const std::lock_guard lock(mutex_);
      if (condemned_.empty()) {
        is_used_ = false;
        return;
      }
      condemned.swap(condemned_);
    }
  }
}

void Usage::release(std::shared_ptr<void> object) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (is_used_) {
      try {
        condemned_.push_back(std::move(object));
      } catch (const std::exception& error) {  // no memory: it ends here, beside the call
        log(LogLevel::kError, error.what());
      }
      return;
    }
    is_used_ = true;
    user_ = std::this_thread::get_id();
  }
  object.reset();
  end();
}

namespace detail {

namespace {

struct Entry {
  std::string_view kind;
  std::shared_ptr<Object> object;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<uintptr_t, Entry> entries;
  uintptr_t next = 1;
  uintptr_t first_own = 0;  // smaller numbers stand for objects of a parent process
};

Table& table();

// No other thread may have the mutex when a process forks, since the child could never get it.  The
// child begins with a new one: a lock belongs to a thread of the parent, which cannot give it back
// there.
void watch_forks() {
  pthread_atfork([] { table().mutex.lock(); }, [] { table().mutex.unlock(); },
                 [] {
                   Table& all = table();
                   new (&all.mutex) std::mutex;
                   all.first_own = 2 * all.next + 1;
                 });
}

Table& table() {
  // Leaked: handles may be destroyed while the process ends.
  static Table& instance = *new Table;
  static const bool is_watched = (watch_forks(), true);
  (void)is_watched;
  return instance;
}

[[noreturn]] void refuse(uintptr_t number,
                         std::string_view kind,
                         std::string_view what,
                         std::string_view found) {
  throw InvalidArgument(number == 0
                            ? fmt::format("{} is null, expected a {}", what, kind)
                            : fmt::format("{} is {}, expected a {}", what,
                                          found.empty() ? "no handle, or one that was destroyed"
                                                        : fmt::format("a handle of a {}", found),
                                          kind));
}

// The entry of a handle, whose mutex is held; throws where there is none of this kind.
auto expect_entry(Table& all, uintptr_t number, std::string_view kind, std::string_view what) {
  const auto found = all.entries.find(number);
  if (found == all.entries.end() || found->second.kind != kind) {
    refuse(number, kind, what, found == all.entries.end() ? "" : found->second.kind);
  }
  return found;
}

}  // namespace

uintptr_t enter(std::shared_ptr<Object> object, std::string_view kind) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  // Odd numbers are no addresses of objects, so a pointer to something else is found out, too.
  const uintptr_t number = 2 * all.next++ + 1;
  all.entries.emplace(number, Entry{kind, std::move(object)});
  return number;
}

std::shared_ptr<Object> find(uintptr_t number, std::string_view kind, std::string_view what) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = expect_entry(all, number, kind, what);
  expect(number >= all.first_own, [&] {
    return fmt::format(
        "{} is a {} of the process that has forked this one, expected one of this "
        "process",
        what, kind);
  });
  return found->second.object;
}

std::shared_ptr<Object> remove(uintptr_t number, std::string_view kind, std::string_view what) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = expect_entry(all, number, kind, what);
  if (number < all.first_own) {
    return nullptr;  // the entry keeps the copy as it is
  }
  auto object = std::move(found->second.object);
  all.entries.erase(found);
  return object;
}

}  // namespace detail

}  // namespace moebius::c_api
