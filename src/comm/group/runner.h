// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the functions that make groups and run ranks share.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/group/peer_group.h"

namespace moebius::comm {

// Throws InvalidArgument for options that no kind of rank can have; returns the timeout.
template <typename Options>
std::chrono::milliseconds check_options(const Options& options, int max_ranks) {
  expect_ge(options.num_ranks, 1, "num_ranks");
  expect_le(options.num_ranks, max_ranks, "num_ranks");
  expect_ge(options.ranks_per_node, 0, "ranks_per_node");
  if (!options.devices.empty()) {
    expect_eq(static_cast<int64_t>(options.devices.size()), options.num_ranks,
              "devices of the ranks");
  }
  return resolve_timeout(options.timeout);
}

// The CPUs of this process, and those that each of its ranks is pinned to.
class RankCpus {
 public:
  RankCpus(int num_ranks, bool pin);

  int num_cpus() const { return num_cpus_; }
  // Keeps the calling thread, of this rank, on the rank's CPUs.  False when ranks are not pinned.
  bool pin(int rank) const;

 private:
  int num_cpus_;
  std::vector<std::vector<int>> parts_;  // by rank; empty when ranks are not pinned
};

// A number that is the same in processes that may run on the same CPUs.
uint64_t hash_of_cpus();

// The text of the exception that is being handled.  It takes no memory, which may have run out.
FixedText<2048> current_exception_text();

}  // namespace moebius::comm
