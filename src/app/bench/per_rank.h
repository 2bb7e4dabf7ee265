// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PerRank: an object for each rank of a team, which the rank's own thread makes, uses and destroys.
// Thread-safety: one thread at a time.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/bench/rank_team.h"

namespace moebius::bench {

template <typename T>
class PerRank {
 public:
  // make(group) -> std::unique_ptr<T>.  Every rank calls it, all at the same time.
  template <typename Make>
  PerRank(RankTeam& team, const Make& make)
      : team_(team), ranks_(static_cast<size_t>(team.num_ranks())) {
    team_.run([&](Group& group) { ranks_[index(group)] = make(group); });
  }
  ~PerRank() {
    try {
      team_.run([&](Group& group) {
        group.barrier("end of a benchmark");
        ranks_[index(group)].reset();
      });
    } catch (const std::exception&) {
      // The ranks have failed and are gone.  Their objects, which may wait for each other, are left
      // to the end of the process, so that the failure can be reported.
      for (std::unique_ptr<T>& rank : ranks_) {
        (void)rank.release();
      }
    }
  }
  PerRank(const PerRank&) = delete;
  PerRank& operator=(const PerRank&) = delete;

  // Every rank calls job(object, group).  Returns the seconds that RankTeam::run returns.
  template <typename Job>
  double run(const Job& job) {
    return team_.run([&](Group& group) { job(*ranks_[index(group)], group); });
  }
  // Every rank calls seconds(object); returns the largest result.
  template <typename Seconds>
  double slowest(const Seconds& seconds) {
    std::vector<double> all(ranks_.size());
    run([&](T& rank, Group& group) { all[index(group)] = seconds(rank); });
    return *std::max_element(all.begin(), all.end());
  }
  // Every rank calls difference(object) -> std::optional<std::string>; returns the first one that
  // there is, after the number of its rank.
  template <typename Difference>
  std::optional<std::string> difference(const Difference& difference) {
    std::vector<std::optional<std::string>> all(ranks_.size());
    run([&](T& rank, Group& group) { all[index(group)] = difference(rank); });
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r]) {
        return "rank " + std::to_string(r) + ": " + *all[r];
      }
    }
    return std::nullopt;
  }

  // In the order of the ranks, for the thread that made them, while no rank is at work.
  const std::vector<std::unique_ptr<T>>& all() const { return ranks_; }
  T& first() const { return *ranks_.front(); }

 private:
  static size_t index(const Group& group) { return static_cast<size_t>(group.rank()); }

  RankTeam& team_;
  std::vector<std::unique_ptr<T>> ranks_;
};

}  // namespace moebius::bench
