// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/rank_team.h"

#include <algorithm>

#include "core/start_thread.h"

namespace moebius::bench {

RankTeam::RankTeam(const ThreadGroupOptions& options) : options_(options) {
  ranks_ = start_thread([] { return "the ranks of a benchmark"; }, [this] { run_ranks(); });
}

void RankTeam::run_ranks() {
  std::exception_ptr error;
  try {
    run_thread_ranks(options_, [this](Group& group) { serve(group); });
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  error_ = error;
  has_ended_ = true;
  changed_.notify_all();
}

RankTeam::~RankTeam() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  ranks_.join();
}

double RankTeam::run(const Job& job) {
  std::unique_lock lock(mutex_);
  job_ = &job;
  num_finished_ = 0;
  end_ = Clock::time_point::min();
  ++num_jobs_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return num_finished_ == options_.num_ranks || has_ended_; });
  if (error_) {
    std::rethrow_exception(error_);
  }
  return std::chrono::duration<double>(end_ - start_).count();
}

// Makes all ranks start a job together, so that it has begun on every rank before any rank can fail
// in it.
void RankTeam::wait_for_all() {
  const int64_t started = num_started_.load(std::memory_order_relaxed);
  if (num_ready_.fetch_add(1, std::memory_order_acq_rel) + 1 < options_.num_ranks) {
    num_started_.wait(started, std::memory_order_acquire);
    return;
  }
  num_ready_.store(0, std::memory_order_relaxed);
  start_ = Clock::now();
  num_started_.store(started + 1, std::memory_order_release);
  num_started_.notify_all();
}

void RankTeam::serve(Group& group) {
  group.barrier("team");  // fails where a rank could not get its thread
  for (int64_t num_done = 0;; ++num_done) {
    const Job* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return num_jobs_ > num_done || is_over_; });
      if (is_over_) {
        return;
      }
      job = job_;
    }
    wait_for_all();
    try {
      (*job)(group);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      changed_.notify_all();
      throw;
    }
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    end_ = std::max(end_, now);
    if (++num_finished_ == options_.num_ranks) {
      changed_.notify_all();
    }
  }
}

}  // namespace moebius::bench
