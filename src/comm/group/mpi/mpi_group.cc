// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/mpi_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "comm/group/mpi/job.h"
#include "comm/group/mpi/mpi_check.h"
#include "comm/group/mpi/mpi_exchange.h"
#include "comm/group/mpi/shared_segments.h"
#include "core/awake_deadline.h"
#include "core/cpu_sets.h"
#include "core/watchdog.h"
#include "core/worker_team.h"
#include "moebius/deadline.h"
#include "moebius/log.h"

namespace moebius {
namespace comm {

namespace {

// What a make_mpi_group() leaves to the next one of this process.
struct Start {
  int num_groups = 0;     // that have been made
  Presence presence;      // at the newest of them
  bool owns_mpi = false;  // MPI was initialised here, and no group owns it yet
  // MPI cannot cancel a barrier, so one that was given up is waited for again.
  MPI_Request barrier = MPI_REQUEST_NULL;
  int num_passed = 0;
};
Start left_over;

// What MPI itself may need to start and to end on a busy machine, beside the time for ranks to
// come.
constexpr std::chrono::milliseconds kMpiTime{2000};

// Calls `step`, which waits for other ranks in MPI without a deadline.  When it takes longer than
// `timeout` and kMpiTime, this process reports it, once for the job, and ends with exit code 3,
// since MPI cannot give up a wait.
void within_deadline(std::string_view name,
                     std::chrono::milliseconds timeout,
                     int group_idx,
                     const std::function<void()>& step) {
  timeout += kMpiTime;
  const Watchdog watchdog(timeout, [&] {
    constexpr int kExitCode = 3;  // as of the command, for what failed while it ran
    report_once([&] {
      const std::optional<Job> job = launched_job();
      fmt::print(stderr, "moebius: rank {}: {} did not end within {} ms: {}\n", job ? job->rank : 0,
                 name, timeout.count(), describe_presence(start_of_group(group_idx)));
    });
    std::_Exit(kExitCode);
  });
  step();
}

}  // namespace

MpiGroup::MpiGroup(MPI_Comm comm,
                   bool owns_mpi,
                   Topology topology,
                   std::chrono::milliseconds timeout,
                   int num_neighbours,
                   int num_cpus)
    : PeerGroup(topology, timeout, num_neighbours, num_cpus),
      comm_(comm),
      owns_mpi_(owns_mpi),
      exceptions_at_start_(std::uncaught_exceptions()),
      has_left_(static_cast<size_t>(topology.size), false),
      told_(static_cast<size_t>(topology.size)) {
  constexpr size_t kSpareNotices = 4;
  sent_notices_.resize(kSpareNotices);
  for (SentNotice& sent : sent_notices_) {
    sent.requests.resize(static_cast<size_t>(size()), MPI_REQUEST_NULL);
  }
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

MpiGroup::~MpiGroup() {
  if (!is_broken() && std::uncaught_exceptions() > exceptions_at_start_) {
    abort("an exception left the scope of its group");
  }
  tell_untold();
  if (is_over_ || wait_for_peers_to_leave()) {
    within_deadline("MPI_Finalize", timeout_, left_over.num_groups - 1, [&] {
      MPI_Comm_free(&comm_);
      if (owns_mpi_) {
        MPI_Finalize();
      }
    });
  } else if (owns_mpi_) {
    log(LogLevel::kInfo, fmt::format("rank {} does not finalize MPI after a failure", rank()));
    remove_shared_segments();
  }
  for (KeptSend& send : kept_sends_) {
    if (send.request != MPI_REQUEST_NULL) {
      (void)new std::vector<std::byte>(std::move(send.buffer));  // leaked: MPI may still read it
    }
  }
  if (std::any_of(sent_notices_.begin(), sent_notices_.end(),
                  [](const SentNotice& sent) { return sent.is_under_way; })) {
    (void)new std::deque<SentNotice>(std::move(sent_notices_));  // leaked, too
  }
}

void MpiGroup::leave() {
  const Call call = enter("leave");
  send_notice({.kind = Notice::kLeft, .failure = {}, .waiting = {}});
  has_left_[static_cast<size_t>(rank())] = true;
  wait_for({call,
            [&] { return std::find(has_left_.begin(), has_left_.end(), false) == has_left_.end(); },
            [&](int peer) { return !has_left_[static_cast<size_t>(peer)]; },
            [](int) { return std::string("expected to leave"); }});
  is_over_ = true;
}

// True when all ranks have left and nothing failed, so that MPI's next calls cannot wait in vain.
bool MpiGroup::wait_for_peers_to_leave() {
  try {
    if (!is_poisoned_) {
      send_notice({.kind = Notice::kLeft, .failure = {}, .waiting = {}});
    }
    const Deadline deadline = Deadline::after(timeout_);
    while (!is_poisoned_ && !deadline.expired()) {
      receive_notices();
      drop_finished_sends();
      std::vector<bool> is_gone = has_left_;
      is_gone[static_cast<size_t>(rank())] = true;
      bool is_healthy = failures_.empty();
      for (int peer = 0; peer < size(); ++peer) {
        if (is_dead(peer)) {
          is_gone[static_cast<size_t>(peer)] = true;
          is_healthy = false;
        }
      }
      for (const Failure& failure : failures_) {
        if (failure.guilty >= 0) {
          is_gone[static_cast<size_t>(failure.guilty)] = true;
        }
      }
      if (std::find(is_gone.begin(), is_gone.end(), false) == is_gone.end() &&
          (kept_sends_.empty() || !is_healthy)) {
        return is_healthy && !is_broken();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (is_poisoned_) {
      // The others have been told of the failure.  They need time to report it, since the launcher
      // may end them once this process is gone.
      constexpr std::chrono::milliseconds kGrace{500};
      std::this_thread::sleep_for(kGrace);
    } else {
      log(is_broken() ? LogLevel::kInfo : LogLevel::kWarn,
          fmt::format("rank {}: not every rank has left within {} ms", rank(), timeout_.count()));
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
  return false;
}

std::unique_ptr<Exchange> MpiGroup::post_exchange(const Call& call, ExchangeBlocks blocks) {
  wait_for_oldest(call);  // epochs that share a tag must not be under way together
  return std::make_unique<MpiExchange>(*this, call, std::move(blocks));
}

void MpiGroup::progress() {
  if (is_poisoned_) {
    return;
  }
  advance_started();
  receive_notices();
  tell_waiting();
  drop_finished_sends();
}

void MpiGroup::tell_failure(const Failure& failure) {
  failures_.push_back(failure);
  if (!is_poisoned_) {
    send_notice({.kind = Notice::kFailure, .failure = failure, .waiting = {}});
  }
}

void MpiGroup::send_notice(const Notice& notice) {
  auto sent = std::find_if(sent_notices_.begin(), sent_notices_.end(),
                           [](const SentNotice& each) { return !each.is_under_way; });
  if (sent == sent_notices_.end()) {
    sent = sent_notices_.emplace(sent);
    sent->requests.resize(static_cast<size_t>(size()), MPI_REQUEST_NULL);
  }
  sent->notice = notice;
  sent->is_under_way = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && !is_dead(peer)) {
      mpi_check(MPI_Isend(&sent->notice, static_cast<int>(sizeof(notice)), MPI_BYTE, peer,
                          kNoticeTag, comm_, &sent->requests[static_cast<size_t>(peer)]),
                "MPI_Isend", rank());
    }
  }
}

void MpiGroup::receive_notices() {
  for (;;) {
    int is_there = 0;
    MPI_Status status{};
    mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, comm_, &is_there, &status), "MPI_Iprobe",
              rank());
    if (is_there == 0) {
      return;
    }
    Notice notice;
    mpi_check(MPI_Recv(&notice, static_cast<int>(sizeof(notice)), MPI_BYTE, status.MPI_SOURCE,
                       kNoticeTag, comm_, MPI_STATUS_IGNORE),
              "MPI_Recv", rank());
    const auto source = static_cast<size_t>(status.MPI_SOURCE);
    switch (notice.kind) {
      case Notice::kLeft:
        has_left_[source] = true;
        break;
      case Notice::kWaiting:
        told_[source] = notice.waiting;
        break;
      default:
        failures_.push_back(notice.failure);
    }
  }
}

void MpiGroup::drop_finished_sends() {
  std::erase_if(kept_sends_, [](KeptSend& send) {
    int is_over = 0;
    MPI_Test(&send.request, &is_over, MPI_STATUS_IGNORE);
    return is_over != 0;
  });
  for (SentNotice& sent : sent_notices_) {
    if (sent.is_under_way) {
      int are_over = 0;
      MPI_Testall(size(), sent.requests.data(), &are_over, MPI_STATUSES_IGNORE);
      sent.is_under_way = are_over == 0;
    }
  }
}

std::optional<PeerSight> MpiGroup::look_at(int peer) const {
  const Waiting& told = told_[static_cast<size_t>(peer)];
  if (told.waits_for < 0) {
    return std::nullopt;
  }
  return PeerSight{told.epoch, std::string(told.op.view()), told.waits_for,
                   std::string(told.waits_in.view())};
}

void MpiGroup::show_waiting(int peer, std::string_view op) {
  own_ = {.epoch = epoch_, .op = last_op(), .waits_for = peer, .waits_in = op};
  waits_since_ = Deadline::Clock::now();
  try {
    tell_waiting();
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

// A message to every peer would cost more than most waits.  But when a deadline expires, a rank has
// to know who of those that are missing waits, too.
void MpiGroup::tell_waiting() {
  const bool is_long = Deadline::Clock::now() - waits_since_ > timeout_ / 8;
  const int news = is_long ? own_.waits_for : -1;
  if (news != std::exchange(told_waits_for_, news) && !is_poisoned_) {
    Notice notice{.kind = Notice::kWaiting, .failure = {}, .waiting = own_};
    notice.waiting.waits_for = news;
    send_notice(notice);
  }
}

namespace {

struct Placement {
  MPI_Comm comm = MPI_COMM_NULL;  // in which the ranks of a machine are consecutive
  Topology topology;
  int num_neighbours = 1;  // ranks of this machine that may use the same CPUs as this rank
  int num_cpus = 1;
};

// REQUIRES: every rank has come, since MPI's collective calls wait without a deadline.
Placement place_ranks(int ranks_per_node) {
  Placement result;
  int world_rank = 0;
  int world_size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);

  // The world rank of a machine's first rank identifies the machine.
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &machine);
  int machine_size = 1;
  MPI_Comm_size(machine, &machine_size);
  int machine_id = world_rank;
  MPI_Bcast(&machine_id, 1, MPI_INT, 0, machine);

  const std::vector<int> cpus = usable_cpus();
  result.num_cpus = std::max(1, static_cast<int>(cpus.size()));
  uint64_t cpus_hash = 0;
  for (const int cpu : cpus) {
    cpus_hash = cpus_hash * 8191 + static_cast<uint64_t>(cpu) + 1;
  }
  std::vector<uint64_t> hashes(static_cast<size_t>(machine_size));
  MPI_Allgather(&cpus_hash, 1, MPI_UINT64_T, hashes.data(), 1, MPI_UINT64_T, machine);
  result.num_neighbours = static_cast<int>(std::count(hashes.begin(), hashes.end(), cpus_hash));
  MPI_Comm_free(&machine);

  std::vector<int> machine_of(static_cast<size_t>(world_size));
  MPI_Allgather(&machine_id, 1, MPI_INT, machine_of.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::stable_sort(machine_of.begin(), machine_of.end());
  // The new ranks are ordered by (machine, world rank), as machine_of now is.
  MPI_Comm_split(MPI_COMM_WORLD, 0, machine_id, &result.comm);
  MPI_Comm_rank(result.comm, &result.topology.rank);
  result.topology.size = world_size;
  result.topology.node_begin = {0};
  for (int rank = 1; rank <= world_size; ++rank) {
    const int begin = result.topology.node_begin.back();
    const bool is_end = rank == world_size || machine_of[static_cast<size_t>(rank)] !=
                                                  machine_of[static_cast<size_t>(begin)];
    if (is_end || rank - begin == ranks_per_node) {
      result.topology.node_begin.push_back(rank);
    }
  }
  return result;
}

// Why there are two barriers: a rank that gives up in the first is counted there all the same once
// the others have come, and is then missed in the second.
void await_all_ranks(std::chrono::milliseconds timeout) {
  constexpr int kBarriers = 2;
  AwakeDeadline deadline(timeout);
  for (; left_over.num_passed < kBarriers; ++left_over.num_passed) {
    if (left_over.barrier == MPI_REQUEST_NULL) {
      MPI_Ibarrier(MPI_COMM_WORLD, &left_over.barrier);
    }
    for (int all_here = 0; all_here == 0;) {
      MPI_Test(&left_over.barrier, &all_here, MPI_STATUS_IGNORE);
      if (all_here == 0 && deadline.expired()) {
        int rank = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        throw CommError(
            fmt::format("rank {}: make_mpi_group, epoch 0: not every rank came within {} ms: {}",
                        rank, timeout.count(),
                        describe_presence(start_of_group(left_over.num_groups))),
            rank, -1);
      }
      std::this_thread::yield();
    }
  }
  left_over.num_passed = 0;
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
  comm::Presence presence(comm::start_of_group(comm::left_over.num_groups));
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  if (is_initialized == 0) {
    int provided = 0;
    comm::within_deadline("MPI_Init_thread", timeout, comm::left_over.num_groups, [&] {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    });
    comm::left_over.owns_mpi = true;
    if (provided < MPI_THREAD_SERIALIZED) {
      log(LogLevel::kWarn, "this MPI wants every call from the thread that made the group");
    }
  }

  comm::await_all_ranks(timeout);
  comm::Placement placement;
  comm::within_deadline("MPI_Comm_split", timeout, comm::left_over.num_groups,
                        [&] { placement = comm::place_ranks(options.ranks_per_node); });
  worker_team::set_num_processes(placement.num_neighbours);
  auto group = std::make_unique<comm::MpiGroup>(
      placement.comm, std::exchange(comm::left_over.owns_mpi, false), placement.topology, timeout,
      placement.num_neighbours, placement.num_cpus);
  ++comm::left_over.num_groups;
  comm::left_over.presence = std::move(presence);
  return group;
}

}  // namespace moebius
