// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of the jobs that mpi_failure_test.cc starts:
//   mpi_failure_rank CASE GUILTY FOLDER
// It writes FOLDER/RANK: "MILLISECONDS MESSAGE" for the error that ended the case on this rank, or
// "MILLISECONDS" without one.  Why it writes files: when the launcher ends a job, it may lose what
// was printed.
#include <fmt/format.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/failure_cases.h"

namespace {

std::atomic<bool> sends_slowly{false};  // a rank that is descheduled between two sends

}  // namespace

// libmoebius_mpi.so calls this one.
extern "C" int MPI_Isend(const void* data,
                         int count,
                         MPI_Datatype type,
                         int to,
                         int tag,
                         MPI_Comm comm,
                         MPI_Request* request) {
  const int status = PMPI_Isend(data, count, type, to, tag, comm, request);
  if (sends_slowly) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  return status;
}

namespace moebius::testing {
namespace {

namespace fs = std::filesystem;
using Body = std::function<void(Group&, int guilty)>;

// Writes the report, then waits for those of the others, since the launcher ends all processes once
// the first has gone.  The wait is bounded: ranks that stall write no report.
void report(const fs::path& folder, const Group& group, const std::string& text) {
  constexpr std::chrono::seconds kMostWait{2};
  const fs::path path = folder / std::to_string(group.rank());
  const fs::path temporary = path.string() + ".tmp";
  std::ofstream(temporary) << text;
  fs::rename(temporary, path);
  const auto is_there = [&](int rank) { return fs::exists(folder / std::to_string(rank)); };
  const auto end = std::chrono::steady_clock::now() + kMostWait;
  for (int rank = 0; rank < group.size(); ++rank) {
    while (!is_there(rank) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

// The guilty rank comes to make a second group when the others have given up.  With `again` the
// others try once more.
void make_group_late(Group& group, int guilty, bool again, const void* comm = nullptr) {
  const bool is_late = group.rank() == guilty;
  const auto make = [&](std::chrono::milliseconds timeout) {
    make_mpi_group({.timeout = timeout, .comm = comm})->barrier("all are here");
  };
  try {
    if (is_late) {
      std::this_thread::sleep_for(2 * short_timeout(1));
    }
    make(short_timeout(1));
  } catch (const CommError&) {
    if (is_late || !again) {
      throw;
    }
    make(kLongTimeout);
  }
}

// The same for the even and the odd ranks, which are a communicator each.  Another communicator of
// the same ranks has made a group before, which must not be taken for it.
void make_half_late(Group& group, int guilty, bool again) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, group.rank() % 2, 0, &half);
  MPI_Comm_dup(half, &other);
  make_mpi_group({.timeout = kLongTimeout, .comm = &other})->barrier("the second communicator");
  make_group_late(group, guilty, again, &half);
}

// The guilty rank throws while a message to the next is under way, which is busy with something
// else and begins to receive it later.  The bytes are gone then.
void throw_with_a_message_under_way(Group&, int guilty) {
  const auto group = make_mpi_group({.timeout = kLongTimeout});
  group->barrier("layout");
  const int rank = group->rank();
  const int receiver = (guilty + 1) % group->size();
  std::vector<std::byte> block(rank == guilty || rank == receiver ? 80'000'000 : 0);
  const auto bytes = static_cast<int64_t>(block.size());
  const SendBlock send{receiver, block.data(), bytes};
  const RecvBlock recv{guilty, block.data(), bytes};
  if (rank == receiver) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  const auto exchange = group->start_exchange("dispatch", {&send, rank == guilty ? 1u : 0u},
                                              {&recv, rank == receiver ? 1u : 0u});
  if (rank == guilty) {
    throw Error("expert 7 is on fire");
  }
  exchange->wait();
  group->barrier("combine");
}

// Rank 1 tells rank 2 of a failure, and rank 3 long after that.  Meanwhile rank 2 destroys its
// group without a word.
void leave_before_the_cause_is_known(Group&, int guilty) {
  const auto group = make_mpi_group({.timeout = kLongTimeout});
  if (group->rank() == guilty) {
    sends_slowly = true;
    group->abort("expert 7 is on fire");
    sends_slowly = false;
    throw Error("expert 7 is on fire");
  }
  if (group->rank() == 2) {
    group->wait_until(
        "receive", 0, [] { return false; }, [] { return std::string("a flag"); });
  }
  group->barrier("dispatch");
}

// The guilty rank stalls, and looks once whether it is missed.
void look_once_when_missed(Group& group, int guilty) {
  if (group.rank() == guilty) {
    std::this_thread::sleep_for(2 * group.timeout());
    throw Error(group.is_missed() ? "this rank is missed" : "nobody misses this rank");
  }
  group.barrier("dispatch");
}

// The cases of this file.
const std::map<std::string, Body>& own_cases() {
  static const std::map<std::string, Body> cases = {
      {"comes_late", [](Group& group, int late) { make_group_late(group, late, false); }},
      {"is_awaited_again", [](Group& group, int late) { make_group_late(group, late, true); }},
      {"comes_late_in_half", [](Group& group, int late) { make_half_late(group, late, false); }},
      {"is_awaited_again_in_half",
       [](Group& group, int late) { make_half_late(group, late, true); }},
      {"throws_with_a_message_under_way", throw_with_a_message_under_way},
      {"looks_once_when_missed", look_once_when_missed},
      {"leaves_before_the_cause_is_known", leave_before_the_cause_is_known},
  };
  return cases;
}

int run(const std::string& name, int guilty, const fs::path& folder) {
  Body body;
  std::chrono::milliseconds timeout = short_timeout(1);
  for (const DeadlyCase& c : deadly_cases()) {
    if (name == c.name) {
      body = c.body;
    }
  }
  if (const auto own = own_cases().find(name); own != own_cases().end()) {
    body = own->second;
  }
  if (!body) {
    const FailureCase& c = failure_case(name);
    body = c.body;
    timeout = timeout_of(c, 1);
  }

  // MPI starts with the first group, which may take seconds on a busy machine.  The deadline of the
  // case is that of the second.
  constexpr std::chrono::seconds kStart{15};
  const auto start = make_mpi_group({.timeout = kStart});
  const auto group = make_mpi_group({.timeout = timeout});
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    body(*group, guilty);
  } catch (const std::exception& error) {
    message = error.what();
    group->abort(message);
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  report(folder, *group, fmt::format("{} {}", took.count(), message));  // while the group is alive
  return message.empty() ? 0 : 1;
}

}  // namespace
}  // namespace moebius::testing

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: mpi_failure_rank CASE GUILTY FOLDER\n");
    return 2;
  }
  return moebius::testing::run(argv[1], std::atoi(argv[2]), argv[3]);
}
