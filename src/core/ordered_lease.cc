// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/ordered_lease.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "core/deferred_release.h"
#include "core/is_captured.h"

namespace moebius {

namespace {

bool is_same(const Stream& a, const Stream& b) {
  return a.native_handle() == b.native_handle() && a.device() == b.device();
}

// Whether it is the stream for which streams of cudaStreamCreate() wait, also by its name in CUDA,
// cudaStreamLegacy, which is 1.
bool is_default(const Stream& stream) {
  return stream.device().is_cuda() && reinterpret_cast<uintptr_t>(stream.native_handle()) <= 1;
}

}  // namespace

// The memory as it was lent last.
struct OrderedLease::Use {
  std::mutex mutex;
  std::optional<Stream> stream;        // that of the call
  bool is_noted = false;               // the stream uses the memory without further notice
  std::optional<Event> end;            // of that use, once is_done() has asked for it
  std::weak_ptr<void> other;           // the handle for tensors that `other_stream` uses
  std::optional<Stream> other_stream;  // set where `other` is
  bool is_last = false;                // the memory is not lent again
};

// The deleter of what is lent.
struct OrderedLease::GiveBack {
  std::shared_ptr<void> memory;
  std::shared_ptr<Use> use;

  void operator()(void* /*lent*/) const {
    std::optional<Stream> awaited;
    {
      const std::lock_guard lock(use->mutex);
      if (use->is_last && use->is_noted) {
        awaited = use->stream;
      }
    }
    if (awaited) {
      release_after(memory, *awaited);
    }
  }
};

OrderedLease::OrderedLease(std::shared_ptr<void> memory)
    : memory_(std::move(memory)), use_(std::make_shared<Use>()) {}

OrderedLease::OrderedLease(OrderedLease&&) noexcept = default;

OrderedLease::~OrderedLease() {
  if (use_ == nullptr) {
    return;
  }
  std::optional<Stream> awaited;
  {
    const std::lock_guard lock(use_->mutex);
    use_->is_last = true;
    if (use_->is_noted && !is_taken()) {
      awaited = use_->stream;
    }
  }
  if (awaited) {
    release_after(memory_, *awaited);
  }
}

std::shared_ptr<void> OrderedLease::lend(const Stream& stream) {
  const std::lock_guard lock(use_->mutex);
  if (use_->is_noted && !is_same(*use_->stream, stream) && !is_captured(stream) &&
      !is_captured(*use_->stream)) {
    stream.wait(use_->end ? *use_->end : use_->stream->record());
  }
  use_->stream = stream;
  use_->is_noted = false;
  use_->end.reset();
  std::shared_ptr<void> lent(memory_.get(), GiveBack{memory_, use_});
  lent_ = lent;
  return lent;
}

// The work of a stream that is captured is in a graph, and whoever launches that orders it.
// One event is recorded for all questions, since one that was just recorded is hardly ever
// complete, and what was done must stay done.  On CUDA's default stream none is recorded: while
// another stream is captured, which may be why somebody asks, that would be an error.
bool OrderedLease::is_done() const {
  const std::lock_guard lock(use_->mutex);
  if (!use_->is_noted) {
    return true;
  }
  if (!use_->end) {
    if (is_default(*use_->stream)) {
      return false;
    }
    if (is_captured(*use_->stream)) {
      return true;
    }
    use_->end = use_->stream->record();
  }
  use_->is_noted = !use_->end->is_complete();
  return !use_->is_noted;
}

std::shared_ptr<void> OrderedLease::note(const std::shared_ptr<void>& lent, const Stream& user) {
  const auto* back = std::get_deleter<GiveBack>(lent);
  if (back == nullptr) {
    return nullptr;
  }
  Use& use = *back->use;
  const std::lock_guard lock(use.mutex);
  if (is_same(*use.stream, user)) {
    use.is_noted = true;
    return lent;
  }
  std::shared_ptr<void> other = use.other.lock();
  if (other == nullptr || !is_same(*use.other_stream, user)) {
    other = released_after(lent, user);
    use.other = other;
    use.other_stream = user;
  }
  return other;
}

}  // namespace moebius
