// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/deferred_release.h"

#include <atomic>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "core/is_captured.h"
#include "moebius/log.h"

namespace moebius {

namespace {

struct Waiting {
  std::shared_ptr<void> owner;
  Event event;
};

struct List {
  std::atomic<int> size{0};  // so that allocations need no lock where nothing waits
  std::mutex mutex;
  std::list<Waiting> waiting;
};

List& list() {
  static auto& instance = *new List;  // leaked: what still waits at the end goes with the process
  return instance;
}

// Why the owner is kept: the stream may still use it, and a leak is better than wrong data.
void keep_for_good(std::shared_ptr<void>&& owner, const char* reason) noexcept {
  union Leaked {
    std::shared_ptr<void> owner;
    ~Leaked() {}
  };
  const Leaked leaked{std::move(owner)};
  (void)leaked;
  log(LogLevel::kError, reason);
}

class ReleasedAfter {
 public:
  ReleasedAfter(std::shared_ptr<void> owner, const Stream& stream)
      : owner_(std::move(owner)), stream_(stream) {}
  ~ReleasedAfter() { release_after(std::move(owner_), stream_); }
  ReleasedAfter(const ReleasedAfter&) = delete;
  ReleasedAfter& operator=(const ReleasedAfter&) = delete;

 private:
  std::shared_ptr<void> owner_;
  Stream stream_;
};

}  // namespace

void release_after(std::shared_ptr<void> owner, const Stream& stream) noexcept {
  release_finished();
  try {
    if (is_captured(stream)) {
      return;
    }
    std::list<Waiting> one(1);
    one.front().event = stream.record();
    if (one.front().event.is_complete()) {
      return;
    }
    one.front().owner = std::move(owner);
    List& all = list();
    const std::lock_guard lock(all.mutex);
    all.waiting.splice(all.waiting.end(), one);
    all.size.fetch_add(1, std::memory_order_relaxed);
  } catch (const std::exception& error) {
    keep_for_good(std::move(owner), error.what());
  }
}

std::shared_ptr<void> released_after(std::shared_ptr<void> owner, const Stream& stream) {
  return std::make_shared<ReleasedAfter>(std::move(owner), stream);
}

void release_finished() noexcept {
  List& all = list();
  if (all.size.load(std::memory_order_relaxed) == 0) {
    return;
  }
  std::list<Waiting> done;  // dropped without the lock, because an owner may release others
  const std::unique_lock lock(all.mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;  // another thread is looking
  }
  for (auto entry = all.waiting.begin(); entry != all.waiting.end();) {
    const auto next = std::next(entry);
    try {
      if (entry->event.is_complete()) {
        done.splice(done.end(), all.waiting, entry);
        all.size.fetch_sub(1, std::memory_order_relaxed);
      }
    } catch (const std::exception&) {
      // The device has failed, so this entry stays for good.
    }
    entry = next;
  }
}

void release_in_order(const std::weak_ptr<void>& owner, const Stream& stream) {
  List& all = list();
  if (all.size.load(std::memory_order_relaxed) == 0 || is_captured(stream)) {
    return;
  }
  std::list<Waiting> taken;  // dropped without the lock, as above
  const std::lock_guard lock(all.mutex);
  for (auto entry = all.waiting.begin(); entry != all.waiting.end();) {
    const auto next = std::next(entry);
    if (!owner.owner_before(entry->owner) && !entry->owner.owner_before(owner)) {
      stream.wait(entry->event);
      taken.splice(taken.end(), all.waiting, entry);
      all.size.fetch_sub(1, std::memory_order_relaxed);
    }
    entry = next;
  }
}

}  // namespace moebius
