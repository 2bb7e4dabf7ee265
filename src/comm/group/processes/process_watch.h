// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ProcessWatch: sees processes end that are not children of this one (pidfd_open(2)), and whether
// they are stopped.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "comm/group/shared_file.h"

namespace moebius::comm {

// Whether the process has been stopped, as by SIGSTOP.
bool is_stopped(pid_t pid);

class ProcessWatch {
 public:
  ProcessWatch() = default;  // watches nobody
  // pids[r] is the process of rank r; 0: it is not watched.  Nor is one that the system does not
  // let this process watch.  One that is there no more has ended, as the first look() says.
  explicit ProcessWatch(std::span<const pid_t> pids);

  // The ranks whose processes have ended and were not returned before.  It asks the system at most
  // once in kPause.
  std::vector<int> look();
  // Whether the process of the rank is watched, and stopped.
  bool is_rank_stopped(int rank) const;
  // "rank 2 has died: its process has ended", for each of them; then "rank 3 has not come", for
  // those that a group is waiting for when it starts.
  static std::string describe(std::span<const int> ended, std::span<const int> not_come);

 private:
  static constexpr std::chrono::milliseconds kPause{1};

  std::vector<pid_t> pids_;      // by rank
  std::vector<int> gone_;        // ranks whose processes ended before they could be watched
  std::vector<File> processes_;  // by rank
  std::vector<pollfd> polled_;   // by rank; those that have ended have no descriptor
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace moebius::comm
