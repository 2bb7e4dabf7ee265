// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a body on every rank of a group.  The kind of group depends on how the test program was
// started:
//   (default)            rank threads in this process
//   --group=own_threads  threads of this process that the test starts itself
//   --group=processes    processes forked from this one
//   --group=own_processes    processes that the test forks, with only pipes between them
//   --group=split_threads    every other rank of twice as many threads
//   --group=split_processes  the same of forked processes
//   --group=mpi          this process is one rank of a job
//   --group=split_mpi    the even and the odd ranks of a job are a group each, made by a split
//   --group=mpi_comms    the same, made from communicators of the test
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/group.h"

namespace moebius::testing {

struct GroupShape {
  int num_ranks = 1;
  int ranks_per_node = 0;  // 0: all on one node
};
std::string to_string(const GroupShape& shape);  // "R4_nodes_of_2"
inline void PrintTo(const GroupShape& shape, std::ostream* out) {
  *out << to_string(shape);
}

std::string_view runner_name();  // "threads", "processes", "mpi": as Group::name()
bool runs_on_forked_ranks();     // whose failed expectations run_ranks() turns into errors
bool runs_on_mpi();

// The shapes that tests go over: 1 to 64 ranks with threads, 1 to 8 with processes, 1 and 4 in
// groups made otherwise, and the ranks of the job with MPI; each in nodes of several sizes.
std::vector<GroupShape> group_shapes();
// INSTANTIATE_TEST_SUITE_P(Shapes, X, on_group_shapes(), shape_name);
inline auto on_group_shapes() {
  return ::testing::ValuesIn(group_shapes());
}
inline std::string shape_name(const ::testing::TestParamInfo<GroupShape>& shape) {
  return to_string(shape.param);
}

// Throws what a rank threw.  With processes it also throws when a rank did not meet an expectation.
void run_ranks(const GroupShape& shape, const std::function<void(Group&)>& body);

// A number per rank, 0 at first, by which bodies tell the test what they did.  Other changes that
// forked ranks make are lost with them.  With MPI each process has numbers of its own.
class RankCounts {
 public:
  explicit RankCounts(int num_ranks);
  ~RankCounts();
  RankCounts(const RankCounts&) = delete;
  RankCounts& operator=(const RankCounts&) = delete;

  void add(int rank) { ++counts_[static_cast<size_t>(rank)]; }
  std::vector<int> get() const { return {counts_.begin(), counts_.end()}; }

 private:
  std::span<std::atomic<int>> counts_;  // in memory that forked processes share
};

}  // namespace moebius::testing
