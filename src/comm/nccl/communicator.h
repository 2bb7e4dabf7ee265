// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicator: one NCCL communicator.  Made non-blocking, so that no call of NCCL waits longer
// than the host group's timeout, nor for a rank that has failed.
#pragma once

#include <nccl.h>

#include <functional>
#include <string>
#include <string_view>

#include "moebius/group.h"

namespace moebius::comm {

class Communicator {
 public:
  // Collective over all of `host`: of the ranks [begin, end), which this rank is one of.
  // The current device is this rank's.
  Communicator(Group& host, int begin, int end);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  bool is_broken() const { return is_broken_; }
  int begin() const { return begin_; }

  // Makes a call and waits until NCCL has done its part.  Throws CommError where it fails or does
  // not come to an end.  Every rank of the communicator must make the call, or be about to: the
  // host group's barrier finds out who is missing, NCCL would not.
  void call(Group& host, std::string_view what, const std::function<ncclResult_t()>& make);

 private:
  explicit Communicator(int begin) : begin_(begin) {}
  std::string reason(ncclResult_t result) const;

  const int begin_;
  ncclComm_t comm_ = nullptr;
  bool is_broken_ = false;
};

}  // namespace moebius::comm
