// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// OrderedLease: memory that is lent again and again, each time for a call on some stream.  Tensors
// on it that are used on the stream of their call (Tensor::record_stream) cost nothing when they
// are dropped, since the next call on that stream comes after their work anyway.  Only a call on
// another stream waits.  Otherwise an event would be recorded for each tensor that is dropped,
// which takes a host as long as a launch.  Where another stream uses them, one event is for all.
//
// Thread-safety: one thread at a time may use an object, but handles that it has lent may be used
// and dropped on any thread.
#pragma once

#include <memory>

#include "moebius/stream.h"

namespace moebius {

class OrderedLease {
 public:
  explicit OrderedLease(std::shared_ptr<void> memory);
  // The destructor releases memory that is still in use after the work that uses it.
  ~OrderedLease();
  OrderedLease(OrderedLease&&) noexcept;
  OrderedLease& operator=(OrderedLease&&) = delete;

  // Lends the memory until every copy of the result is gone.  What the stream is given from then on
  // comes after the work that has used the memory before.  REQUIRES: !is_taken(), and is_done()
  // where the stream is captured, since it cannot wait.
  std::shared_ptr<void> lend(const Stream& stream);
  bool is_taken() const { return !lent_.expired(); }
  // Whether the work that has used the memory is done.  Once it is, it stays so until the memory is
  // lent.  REQUIRES: !is_taken().
  bool is_done() const;

  // Notes that the stream uses what an object of this class has lent.  Returns the handle to keep
  // in place of `lent`, or null where it was not lent so.
  static std::shared_ptr<void> note(const std::shared_ptr<void>& lent, const Stream& user);

 private:
  struct Use;
  struct GiveBack;

  std::shared_ptr<void> memory_;
  std::weak_ptr<void> lent_;
  std::shared_ptr<Use> use_;  // null: it was moved from
};

}  // namespace moebius
