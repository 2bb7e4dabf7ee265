// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicator: one NCCL communicator.  Unless it is the caller's, it is non-blocking, so that no
// call of NCCL waits longer than the host group's timeout, or for a rank that has failed.  What
// NCCL does on a GPU has a deadline, too: a thread watches it, and gives the communicator up when
// it is late, which ends its kernels.
//
// Thread-safety: one thread at a time, but any thread may call is_broken().
#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "moebius/deadline.h"
#include "moebius/group.h"
#include "moebius/stream.h"

namespace moebius::comm {

class Communicator {
 public:
  // Collective over all of `host`.  The communicator is of the ranks [begin, end), which include
  // this rank.  REQUIRES: the current device is this rank's.
  Communicator(Group& host, int begin, int end);
  // Adopts the caller's, whose ranks are those of the host group in the same order.  It is not
  // destroyed here, but it is aborted like another when it fails.
  explicit Communicator(ncclComm_t adopted);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // nullptr once the communicator has been given up, which does not happen during call()'s `make`.
  ncclComm_t get() const { return comm_; }
  bool is_broken() const;
  int begin() const { return begin_; }

  // Makes a call and waits until NCCL has done its part on the host.  Throws CommError when it
  // fails or does not end in time.  REQUIRES: every rank of the communicator makes the call or is
  // about to, since NCCL cannot tell who is missing, as the host group's barrier can.
  void call(Group& host, std::string_view what, const std::function<ncclResult_t()>& make);

  // From now on the work that was enqueued on the stream after `before` was recorded has a
  // deadline: it must be done `timeout` after `before`.  Without it kernels that wait for a rank
  // that has died would wait for ever, and so would everything that waits for them.
  void look_after(const Event& before, const Stream& stream, std::chrono::milliseconds timeout);

 private:
  void watch();
  // Gives the communicator up.  This also ends what has been enqueued, which may wait for a rank
  // that is gone.  REQUIRES: the mutex is held.
  void give_up();
  explicit Communicator(int begin);
  // Waits until the event has come, the deadline (if any) has expired or this object ends.  Returns
  // whether the event has come.
  bool await(std::unique_lock<std::mutex>& lock, const Event& event, const Deadline* deadline);
  std::string reason(ncclResult_t result) const;

  const int begin_;
  const int device_;
  mutable std::mutex mutex_;  // guards the rest
  ncclComm_t comm_ = nullptr;
  bool is_adopted_ = false;
  bool is_broken_ = false;
  struct Work {
    Event before;
    Event done;
    std::chrono::milliseconds timeout;
  };
  std::deque<Work> work_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread watcher_;  // started by the first look_after()
};

}  // namespace moebius::comm
