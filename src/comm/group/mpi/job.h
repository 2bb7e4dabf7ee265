// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the processes that a launcher has started know of each other without MPI, which may hang or
// be gone.  They find each other on their machine by sockets with names that Linux keeps apart from
// files (unix(7), "abstract"): such a name vanishes with its process, however that ends.
// Thread-safety: all of this may be called from any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace moebius::comm {

// The job of this process, as far as its launcher's variables tell.
struct Job {
  std::string name;     // the same in all processes of the job, and in no other job
  int rank = 0;         // in MPI_COMM_WORLD
  int size = -1;        // number of processes; -1: unknown
  int local_size = -1;  // those on this machine; -1: unknown

  bool has_others() const { return size > 1 || (size < 0 && rank > 0); }
};
// Returns nullopt where no launcher has started this process.
std::optional<Job> launched_job();

// Calls `report` in one process of the job on this machine, and once there; returns when that has
// been done.  Where no launcher has started this process, the first caller reports.
// Where the process that is to report dies first, another one does it, and where it does not end in
// time (kReportTime), a second one reports, too.
void report_once(const std::function<void()>& report);

// Returns when another process of the machine has reported, at the latest after kReportTime: for
// one that is not to report.  Until then it must not end, or the launcher could end the others.
void await_report();

// Shows the other processes of the machine that this one has come to make its `group_idx`-th group.
class Arrival {
 public:
  Arrival() = default;
  explicit Arrival(int group_idx);
  Arrival(Arrival&& other) noexcept;
  Arrival& operator=(Arrival&& other) noexcept;
  ~Arrival();

 private:
  int socket_ = -1;
};

// Says who keeps the job's `group_idx`-th group waiting: "rank 2 is not there; rank 3 is stopped",
// or who came, where it cannot tell.  Processes of other machines cannot be seen.
std::string describe_arrivals(int group_idx);

}  // namespace moebius::comm
