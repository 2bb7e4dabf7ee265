// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicator: one NCCL communicator.  Made non-blocking, so that no call of NCCL waits longer
// than the host group's timeout, nor for a rank that has failed.  What NCCL does on a GPU has a
// deadline, too: a thread looks after it, and gives the communicator up, which ends its kernels.
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
  // Collective over all of `host`: of the ranks [begin, end), which this rank is one of.
  // The current device is this rank's.
  Communicator(Group& host, int begin, int end);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Within `make` of call(), where it is not given up meanwhile; nullptr once it is.
  ncclComm_t get() const { return comm_; }
  bool is_broken() const;
  int begin() const { return begin_; }

  // Makes a call and waits until NCCL has done its part.  Throws CommError where it fails or does
  // not come to an end.  Every rank of the communicator must make the call, or be about to: the
  // host group's barrier finds out who is missing, NCCL would not.
  void call(Group& host, std::string_view what, const std::function<ncclResult_t()>& make);

  // What has been enqueued on the stream since `before` was recorded must be done `timeout` after
  // that: kernels that wait for a rank that has died would stay for ever, and whoever waits for
  // them.
  void look_after(const Event& before, const Stream& stream, std::chrono::milliseconds timeout);

 private:
  void watch();
  // Ends what has been enqueued, too: it may wait for a rank that is gone.  With the mutex held.
  void give_up();
  explicit Communicator(int begin);
  // Whether the event has come before the deadline, if there is one, and before the end.
  bool await(std::unique_lock<std::mutex>& lock, const Event& event, const Deadline* deadline);
  std::string reason(ncclResult_t result) const;

  const int begin_;
  const int device_;
  mutable std::mutex mutex_;  // guards the rest
  ncclComm_t comm_ = nullptr;
  bool is_broken_ = false;
  struct Work {
    Event before;
    Event done;
    std::chrono::milliseconds timeout;
  };
  std::deque<Work> work_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread watcher_;  // started with the first work
};

}  // namespace moebius::comm
