// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a communicator meet and become a group.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/mpi/job.h"
#include "comm/group/mpi/library.h"
#include "comm/group/mpi/mpi_check.h"
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

// What a make_mpi_group() that was given up leaves to the next one with the same communicator.  MPI
// cannot cancel a barrier, so the next one goes on with it.
struct OpenBarrier {
  MPI_Request request = MPI_REQUEST_NULL;
  int num_passed = 0;
};

// The communicator carries it as an attribute, so that it goes when the communicator is freed.
OpenBarrier& open_barrier(MPI_Comm comm) {
  static const int keyval = [] {
    int made = MPI_KEYVAL_INVALID;
    const auto free_it = [](MPI_Comm, int, void* barrier, void*) {
      delete static_cast<OpenBarrier*>(barrier);
      return MPI_SUCCESS;
    };
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_it, &made, nullptr);
    return made;
  }();
  void* attribute = nullptr;
  int is_there = 0;
  MPI_Comm_get_attr(comm, keyval, &attribute, &is_there);
  if (is_there == 0) {
    attribute = new OpenBarrier;
    MPI_Comm_set_attr(comm, keyval, attribute);
  }
  return *static_cast<OpenBarrier*>(attribute);
}

int size_of(MPI_Comm comm) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  return size;
}
int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

// The ranks of the communicator in MPI_COMM_WORLD; -1 for processes that are not in it.
std::vector<int> members_of(MPI_Comm comm) {
  MPI_Group own = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &own);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> ranks(static_cast<size_t>(size_of(comm)));
  std::vector<int> members(ranks.size(), -1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i] = static_cast<int>(i);
  }
  MPI_Group_translate_ranks(own, static_cast<int>(ranks.size()), ranks.data(), world,
                            members.data());
  MPI_Group_free(&own);
  MPI_Group_free(&world);
  std::replace(members.begin(), members.end(), MPI_UNDEFINED, -1);
  return members;
}

struct Placement {
  MPI_Comm comm = MPI_COMM_NULL;  // in which the ranks of a machine are consecutive
  Topology topology;
  int num_neighbours = 1;  // ranks of this machine that may use the same CPUs as this rank
};

// REQUIRES: every rank has come, since MPI's collective calls wait without a deadline.
Placement place_ranks(MPI_Comm whole, int ranks_per_node) {
  Placement result;
  const int whole_rank = rank_in(whole);
  const int whole_size = size_of(whole);

  // The rank of a machine's first process identifies the machine.
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(whole, MPI_COMM_TYPE_SHARED, whole_rank, MPI_INFO_NULL, &machine);
  int machine_id = whole_rank;
  MPI_Bcast(&machine_id, 1, MPI_INT, 0, machine);

  const uint64_t cpus_hash = hash_of_cpus();
  std::vector<uint64_t> hashes(static_cast<size_t>(size_of(machine)));
  MPI_Allgather(&cpus_hash, 1, MPI_UINT64_T, hashes.data(), 1, MPI_UINT64_T, machine);
  result.num_neighbours = static_cast<int>(std::count(hashes.begin(), hashes.end(), cpus_hash));
  MPI_Comm_free(&machine);

  std::vector<int> machine_of(static_cast<size_t>(whole_size));
  MPI_Allgather(&machine_id, 1, MPI_INT, machine_of.data(), 1, MPI_INT, whole);
  std::stable_sort(machine_of.begin(), machine_of.end());
  // The new ranks are ordered by (machine, rank), as machine_of now is.
  MPI_Comm_split(whole, 0, machine_id, &result.comm);
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
void await_all_ranks(MPI_Comm comm, std::chrono::milliseconds timeout, const MeetingPlace& place) {
  constexpr int kBarriers = 2;
  OpenBarrier& barrier = open_barrier(comm);
  AwakeDeadline deadline(timeout);
  for (; barrier.num_passed < kBarriers; ++barrier.num_passed) {
    if (barrier.request == MPI_REQUEST_NULL) {
      MPI_Ibarrier(comm, &barrier.request);
    }
    for (int all_here = 0; all_here == 0;) {
      MPI_Test(&barrier.request, &all_here, MPI_STATUS_IGNORE);
      if (all_here == 0 && deadline.expired()) {
        const int rank = rank_in(comm);
        throw CommError(
            fmt::format("rank {}: make_mpi_group, epoch 0: not every rank came within {} ms: {}",
                        rank, timeout.count(), describe_presence(place)),
            rank, -1);
      }
      std::this_thread::yield();
    }
  }
  barrier.num_passed = 0;
}

// The communicator that the options name.
MPI_Comm comm_of(const MpiGroupOptions& options) {
  if (options.comm == nullptr) {
    return MPI_COMM_WORLD;
  }
  const MPI_Comm comm = *static_cast<const MPI_Comm*>(options.comm);
  expect(comm != MPI_COMM_NULL, "make_mpi_group: the communicator is MPI_COMM_NULL");
  int is_inter = 0;
  MPI_Comm_test_inter(comm, &is_inter);
  expect(is_inter == 0,
         "make_mpi_group: the communicator joins two groups of processes, expected "
         "an intracommunicator");
  return comm;
}

}  // namespace

}  // namespace comm

std::unique_ptr<Group> make_mpi_group(const MpiGroupOptions& options) {
  expect_ge(options.ranks_per_node, 0, "ranks_per_node");
  const auto timeout = comm::resolve_timeout(options.timeout);
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) {
    throw Unsupported("MPI has been finalized in this process and cannot start again");
  }
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  expect(options.comm == nullptr || is_initialized != 0,
         "make_mpi_group: a communicator is given, but MPI has not been initialized");
  comm::Presence presence;
  if (is_initialized == 0) {
    const comm::MeetingPlace place = comm::MeetingPlace::of_job(0);
    presence = comm::Presence(place);
    comm::unclaimed = std::make_shared<comm::MpiLibrary>(timeout, place);
    comm::library = comm::unclaimed;
  }
  const MPI_Comm whole = comm::comm_of(options);
  const std::vector<int> members = comm::members_of(whole);
  comm::Meetings& meetings = comm::meetings_of[members];
  const bool is_job = static_cast<int>(members.size()) == comm::size_of(MPI_COMM_WORLD);
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
