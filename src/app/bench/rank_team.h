// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RankTeam: rank threads that live on and do one job after the other.  So what ranks do together
// can be timed from a common start until the last of them has finished.
// Thread-safety: one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "moebius/group.h"

namespace moebius::bench {

class RankTeam {
 public:
  using Job = std::function<void(Group& group)>;

  explicit RankTeam(const ThreadGroupOptions& options);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  // Every rank does the job.  Returns the seconds from the moment when all were ready to start
  // until the last has finished.  Rethrows what a rank has thrown; the team can do no job after
  // that.
  double run(const Job& job);
  int num_ranks() const { return options_.num_ranks; }

 private:
  using Clock = std::chrono::steady_clock;

  void run_ranks();
  void serve(Group& group);
  void wait_for_all();

  const ThreadGroupOptions options_;
  std::mutex mutex_;  // guards the members from here to error_
  std::condition_variable changed_;
  const Job* job_ = nullptr;
  int64_t num_jobs_ = 0;  // given to the ranks so far
  int num_finished_ = 0;  // ranks that have finished the last job
  bool is_over_ = false;
  bool has_ended_ = false;
  Clock::time_point end_;
  std::exception_ptr error_;
  std::atomic<int> num_ready_{0};
  std::atomic<int64_t> num_started_{0};  // jobs that all ranks have started
  Clock::time_point start_;              // written by the last rank that is ready
  std::thread ranks_;
};

}  // namespace moebius::bench
