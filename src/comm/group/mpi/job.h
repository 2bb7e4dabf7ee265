// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This is how processes of a launcher learn of each other without MPI, which may hang or be gone.
// They find each other on their machine by sockets with names that Linux keeps apart from
// files (unix(7), "abstract"): such a name vanishes with its process, however that ends.
// Thread-safety: all of this may be called from any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/shared_file.h"

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

// Where processes of a job come together.
struct MeetingPlace {
  std::string name;        // by which they find each other; no other meeting has it
  std::vector<int> ranks;  // in the job, by rank among those who meet; empty: all of the job

  // Where the processes of the job, or those of `ranks`, come to make their `group_idx`-th group.
  static MeetingPlace of_job(int group_idx);
  static MeetingPlace of_ranks(std::vector<int> ranks, int group_idx);
};

// Shows the other processes of the machine that this one has come somewhere, as long as it lives.
class Presence {
 public:
  Presence() = default;
  explicit Presence(std::string_view place_name);
  explicit Presence(const MeetingPlace& place) : Presence(std::string_view(place.name)) {}

 private:
  File socket_;
};

// The name of the place where the command begins.
constexpr std::string_view kStart = "start";

// Says who of those who meet keeps the others waiting: "rank 2 is not there; rank 3 is stopped", or
// who came, where it cannot tell.  Ranks are those of the job; where only some of the job meet, it
// says so.  Processes of other machines cannot be seen.
std::string describe_presence(const MeetingPlace& place);

// Calls `report` in one process of the job on this machine, once, then in every process
// `tell_others`, which makes others fail, too.  Where no launcher has started this process, the
// first call reports.
// Where the process that is to report dies first, another one does it, and where it does not end in
// time (1 s), a second one reports, too.  Who has reported stays for a while, so that processes
// that fail later find it.
void report_once(
    const std::function<void()>& report, const std::function<void()>& tell_others = [] {});
// Returns when another process of the machine has reported, at the latest after 1 s: for one that
// is not to report.  Until then it must not end, or the launcher could end the others.
void await_report();

}  // namespace moebius::comm
