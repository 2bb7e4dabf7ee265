// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a communicator meet and become a group.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/mpi/job.h"
#include "comm/group/mpi/library.h"
#include "comm/group/mpi/loaded_mpi.h"
#include "comm/group/mpi/mpi_group.h"
#include "comm/group/runner.h"
#include "core/awake_deadline.h"
#include "core/cpu_sets.h"
#include "core/worker_team.h"

namespace moebius {
namespace comm {

namespace {

// What make_mpi_group() leaves to the next call in this process with the same members.
struct Meetings {
  int num_groups = 0;  // that they have made
  Presence presence;   // at the newest of them
};
std::map<std::vector<int>, Meetings> meetings_of;  // by their ranks in the job

// MPI, where make_mpi_group() has initialised it: `unclaimed` until there is a group.
std::shared_ptr<MpiLibrary> unclaimed;
std::weak_ptr<MpiLibrary> library;

int size_of(MpiComm comm) {
  int size = 1;
  mpi().size(comm, &size);
  return size;
}
int rank_in(MpiComm comm) {
  int rank = 0;
  mpi().rank(comm, &rank);
  return rank;
}

// The ranks of the communicator in MPI_COMM_WORLD; -1 for processes that are not in it.
std::vector<int> members_of(MpiComm comm) {
  std::vector<int> members(static_cast<size_t>(size_of(comm)));
  mpi().ranks_in_world(comm, static_cast<int>(members.size()), members.data());
  return members;
}

struct Placement {
  MpiComm comm;  // in which the ranks of a machine are consecutive
  Topology topology;
  int num_neighbours = 1;  // ranks of this machine that may use the same CPUs as this rank
};

// REQUIRES: every rank has come, since MPI's collective calls wait without a deadline.
Placement place_ranks(MpiComm whole, int ranks_per_node) {
  Placement result;
  const int whole_rank = rank_in(whole);
  const int whole_size = size_of(whole);

  // The rank of a machine's first process identifies the machine.
  MpiComm machine;
  mpi().split_by_machine(whole, whole_rank, &machine);
  int machine_id = whole_rank;
  mpi().broadcast(machine, &machine_id, sizeof(machine_id), 0);

  const uint64_t cpus_hash = hash_of_cpus();
  std::vector<uint64_t> hashes(static_cast<size_t>(size_of(machine)));
  mpi().all_gather(machine, &cpus_hash, sizeof(cpus_hash), hashes.data());
  result.num_neighbours = static_cast<int>(std::count(hashes.begin(), hashes.end(), cpus_hash));
  mpi().free(&machine);

  std::vector<int> machine_of(static_cast<size_t>(whole_size));
  mpi().all_gather(whole, &machine_id, sizeof(machine_id), machine_of.data());
  std::stable_sort(machine_of.begin(), machine_of.end());
  // The new ranks are ordered by (machine, rank), as machine_of now is.
  mpi().split(whole, 0, machine_id, &result.comm);
  result.topology.rank = rank_in(result.comm);
  result.topology.size = whole_size;
  result.topology.node_begin = {0};
  for (int rank = 1; rank <= whole_size; ++rank) {
    const int begin = result.topology.node_begin.back();
    const bool is_end = rank == whole_size || machine_of[static_cast<size_t>(rank)] !=
                                                  machine_of[static_cast<size_t>(begin)];
    if (is_end || rank - begin == ranks_per_node) {
      result.topology.node_begin.push_back(rank);
    }
  }
  return result;
}

// Why there are two barriers: a rank that gives up in the first is counted there all the same once
// the others have come, and is then missed in the second.
void await_all_ranks(MpiComm comm, std::chrono::milliseconds timeout, const MeetingPlace& place) {
  constexpr int kBarriers = 2;
  AwakeDeadline deadline(timeout);
  for (int are_here = 0; are_here == 0;) {
    const int rank = rank_in(comm);
    mpi_check(mpi().pass_barriers(comm, kBarriers, &are_here), "MPI_Ibarrier", rank);
    if (are_here == 0 && deadline.expired()) {
      throw CommError(
          fmt::format("rank {}: make_mpi_group, epoch 0: not every rank came within {} ms: {}",
                      rank, timeout.count(), describe_presence(place)),
          rank, -1);
    }
    std::this_thread::yield();
  }
}

// The communicator that the options name.
MpiComm comm_of(const MpiGroupOptions& options) {
  if (options.comm == nullptr) {
    return mpi().world;
  }
  MpiComm comm;
  const char* refusal = nullptr;
  mpi().comm_of_user(options.comm, &comm, &refusal);
  expect(refusal == nullptr, [&] { return fmt::format("make_mpi_group: {}", refusal); });
  return comm;
}

}  // namespace

}  // namespace comm

std::unique_ptr<Group> make_mpi_group(const MpiGroupOptions& options) {
  expect_ge(options.ranks_per_node, 0, "ranks_per_node");
  const auto timeout = comm::resolve_timeout(options.timeout);
  if (comm::is_mpi_poisoned()) {
    throw Unsupported(fmt::format("this process {}", comm::kIsPoisoned));
  }
  int is_finalized = 0;
  comm::mpi().finalized(&is_finalized);
  if (is_finalized != 0) {
    throw Unsupported("MPI has been finalized in this process and cannot start again");
  }
  int is_initialized = 0;
  comm::mpi().initialized(&is_initialized);
  expect(options.comm == nullptr || is_initialized != 0,
         "make_mpi_group: a communicator is given, but MPI has not been initialized");
  comm::Presence presence;
  if (is_initialized == 0) {
    const comm::MeetingPlace place = comm::MeetingPlace::of_job(0);
    presence = comm::Presence(place);
    comm::unclaimed = std::make_shared<comm::MpiLibrary>(timeout, place);
    comm::library = comm::unclaimed;
  }
  const comm::MpiComm whole = comm::comm_of(options);
  const std::vector<int> members = comm::members_of(whole);
  comm::Meetings& meetings = comm::meetings_of[members];
  const bool is_job = static_cast<int>(members.size()) == comm::size_of(comm::mpi().world);
  const auto place = is_job && std::is_sorted(members.begin(), members.end())
                         ? comm::MeetingPlace::of_job(meetings.num_groups)
                         : comm::MeetingPlace::of_ranks(members, meetings.num_groups);
  if (is_initialized != 0) {  // else it has come there already
    presence = comm::Presence(place);
  }
  comm::await_all_ranks(whole, timeout, place);
  comm::Placement placement;
  comm::within_deadline("MPI_Comm_split", timeout, place,
                        [&] { placement = comm::place_ranks(whole, options.ranks_per_node); });
  worker_team::set_num_processes(placement.num_neighbours);
  auto group = std::make_unique<comm::MpiGroup>(placement.comm, comm::library.lock(), place,
                                                placement.topology, timeout,
                                                placement.num_neighbours, num_usable_cpus());
  comm::unclaimed.reset();
  ++meetings.num_groups;
  meetings.presence = std::move(presence);
  return group;
}

}  // namespace moebius
