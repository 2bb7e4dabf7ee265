// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/library.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "comm/group/mpi/loaded_mpi.h"
#include "comm/group/mpi/shared_segments.h"
#include "core/watchdog.h"
#include "moebius/log.h"

namespace moebius::comm {

namespace {

int rank_of_job() {
  const std::optional<Job> job = launched_job();
  return job ? job->rank : 0;
}

}  // namespace

void within_deadline(std::string_view name,
                     std::chrono::milliseconds timeout,
                     const MeetingPlace& place,
                     const std::function<void()>& step) {
  // What MPI itself may need to start and to end on a busy machine, beside the time for ranks to
  // come.
  constexpr std::chrono::milliseconds kMpiTime{2000};
  timeout += kMpiTime;
  const Watchdog watchdog(timeout, [&] {
    constexpr int kExitCode = 3;  // as of the command, for what failed while it ran
    report_once([&] {
      fmt::print(stderr, "moebius: rank {}: {} did not end within {} ms: {}\n", rank_of_job(), name,
                 timeout.count(), describe_presence(place));
    });
    std::_Exit(kExitCode);
  });
  step();
}

MpiLibrary::MpiLibrary(std::chrono::milliseconds timeout, const MeetingPlace& place)
    : timeout_(timeout), place_(place) {
  int is_serialized = 0;
  within_deadline("MPI_Init_thread", timeout, place, [&] { mpi().init(&is_serialized); });
  if (is_serialized == 0) {
    log(LogLevel::kWarn, "this MPI wants every call from the thread that made the group");
  }
}

MpiLibrary::~MpiLibrary() {
  if (may_finalize_ && !is_mpi_poisoned()) {
    within_deadline("MPI_Finalize", timeout_, place_, [] { mpi().finalize(); });
  } else {
    log(LogLevel::kInfo,
        fmt::format("rank {} does not finalize MPI after a failure", rank_of_job()));
    remove_shared_segments();
  }
}

}  // namespace moebius::comm
