// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RankTeam: rank threads that stay and do one job after the other, so that what ranks do together
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

  // Every rank does the job; returns the seconds from the moment all were ready to start until the
  // last had finished.  Rethrows what a rank threw; the team is of no use after that.
  double run(const Job& job);
  int num_ranks() const { return options_.num_ranks; }

 private:
  using Clock = std::chrono::steady_clock;

  void serve(Group& group);
  void wait_for_all();

  const ThreadGroupOptions options_;
  std::mutex mutex_;  // guards what follows, up to num_ready_
  std::condition_variable changed_;
  const Job* job_ = nullptr;
  int64_t num_jobs_ = 0;  // handed out so far
  int num_finished_ = 0;  // ranks, of the last job
  bool is_over_ = false;
  bool has_ended_ = false;
  Clock::time_point end_;
  std::exception_ptr error_;
  std::atomic<int> num_ready_{0};
  std::atomic<int64_t> num_started_{0};  // jobs
  Clock::time_point start_;              // written by the last to be ready
  std::thread ranks_;
};

}  // namespace moebius::bench
