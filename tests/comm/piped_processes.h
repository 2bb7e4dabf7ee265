// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes of a test that have nothing in common but a pipe from each to each other: no board, no
// launcher, no MPI.  They gather bytes through the pipes and become a group by
// make_process_group().
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "moebius/group.h"

namespace moebius::testing {

// How a process ended.
struct PipedReport {
  bool has_reported = false;  // it ended by itself, and said how
  std::string message;        // of the exception that ended its body; empty: it ended well
  int peer = -1;              // the rank that the exception blames
  std::chrono::steady_clock::time_point ended;
  int status = 0;  // as of waitpid()
};

// Expects that every rank has ended well.
void expect_well(const std::vector<PipedReport>& reports);
// Expects that every other rank has ended by itself, with a message that names the guilty one.
void expect_named(const std::vector<PipedReport>& reports, int guilty);
// The same, and that their exceptions blame it no later than `limit` after `when`.
void expect_blamed(const std::vector<PipedReport>& reports,
                   int guilty,
                   std::chrono::steady_clock::time_point when,
                   std::chrono::milliseconds limit);

class PipedProcesses {
 public:
  // Forks a process for each rank of `options` and runs the body there, with a Bootstrap that
  // gathers through the pipes.  REQUIRES: this process has no other threads.
  PipedProcesses(const ProcessGroupOptions& options,
                 const std::function<void(const Bootstrap&)>& body);
  ~PipedProcesses();  // kills those that still run
  PipedProcesses(const PipedProcesses&) = delete;
  PipedProcesses& operator=(const PipedProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  // Waits until the ranks have ended, except `stays`, which it then kills; so it does with all
  // ranks that take longer than `most`.
  std::vector<PipedReport> wait(std::chrono::milliseconds most, int stays = -1);

 private:
  std::vector<pid_t> pids_;   // by rank; -1: it has been waited for
  std::vector<int> reports_;  // by rank; the read end of a pipe
};

}  // namespace moebius::testing
