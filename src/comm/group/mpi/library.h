// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MPI itself: calls of it that wait without a deadline, and its end.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "comm/group/mpi/job.h"

namespace moebius::comm {

// Calls `step`, which waits for other ranks in MPI without a deadline.  When it takes longer than
// `timeout` and what MPI itself may need, this process reports it, once for the job, and ends with
// exit code 3, since MPI cannot give up a wait.  `place` is where the ranks have met.
void within_deadline(std::string_view name,
                     std::chrono::milliseconds timeout,
                     const MeetingPlace& place,
                     const std::function<void()>& step);

// Stands for MPI where this library has initialised it.  The groups of the process share it, and it
// finalizes MPI when the last of them is gone.
class MpiLibrary {
 public:
  // Initialises MPI.
  MpiLibrary(std::chrono::milliseconds timeout, const MeetingPlace& place);
  ~MpiLibrary();
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  // A group has failed: MPI will not be finalized, since that could hang.
  void give_up() { may_finalize_ = false; }

 private:
  const std::chrono::milliseconds timeout_;
  const MeetingPlace place_;
  bool may_finalize_ = true;
};

}  // namespace moebius::comm
