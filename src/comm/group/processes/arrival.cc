// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/arrival.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/runner.h"
#include "core/awake_deadline.h"
#include "core/cpu_sets.h"
#include "core/interrupt.h"
#include "core/worker_team.h"

namespace moebius {
namespace comm {

namespace {

// The rank that found out is in no group yet, so that the error is made here.
[[noreturn]] void fail_start(int rank, std::string_view op, int guilty, std::string_view reason) {
  throw CommError(fmt::format("rank {}: {}, epoch 0: {}", rank, op, reason), rank, guilty, true);
}

// Every rank has the same hellos and so comes to the same end.
void check_hellos(std::string_view op, std::span<const Hello> hellos) {
  const Hello& first = hellos.front();
  const auto refuse = [&](size_t rank, std::string_view why) {
    throw Unsupported(fmt::format("{}: ranks 0 and {} {}", op, rank, why));
  };
  for (size_t r = 0; r < hellos.size(); ++r) {
    const Hello& hello = hellos[r];
    const auto of_rank = [&](std::string_view what) {
      return fmt::format("{}: {} said by the process at place {} of the all-gather", op, what, r);
    };
    expect_eq(hello.rank, static_cast<int64_t>(r), of_rank("rank"));
    expect_eq(hello.size, static_cast<int64_t>(hellos.size()), of_rank("size"));
    expect_eq(hello.ranks_per_node, first.ranks_per_node, of_rank("ranks_per_node"));
    if (!hello.error.empty()) {
      throw Unsupported(fmt::format("{}: rank {}: {}", op, r, hello.error.view()));
    }
    if (hello.board_bytes != first.board_bytes) {
      refuse(r, "have different versions of this library");
    }
    if (hello.boot.view() != first.boot.view()) {
      refuse(r, "are on different machines, and this group is for processes of one");
    }
    if (hello.mailbox.network != first.mailbox.network) {
      refuse(r, "are in different network namespaces, and need one to hand over memory");
    }
  }
}

// Processes of another namespace are not watched: their numbers mean nothing here.
ProcessWatch watch_peers(const Hello& own, std::span<const Hello> hellos) {
  std::vector<pid_t> pids;
  for (const Hello& hello : hellos) {
    const bool is_known = hello.pid_namespace == own.pid_namespace && own.pid_namespace != 0;
    pids.push_back(is_known && hello.rank != own.rank ? hello.pid : 0);
  }
  return ProcessWatch(pids);
}

}  // namespace

Arrival::Arrival(int rank, int size, int ranks_per_node) {
  hello_.rank = rank;
  hello_.size = size;
  hello_.ranks_per_node = ranks_per_node;
  hello_.pid = getpid();
  hello_.board_bytes = Board::bytes_for(size);
  struct stat status {};
  if (stat("/proc/self/ns/pid", &status) == 0) {
    hello_.pid_namespace = status.st_ino;
  }
  try {
    hello_.cpus_hash = hash_of_cpus();
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    hello_.boot = std::string_view(boot);
    mailbox_.emplace();
    hello_.mailbox = mailbox_->address();
    if (rank == 0) {
      board_file_ = File::make_memory(hello_.board_bytes);
    }
  } catch (const std::exception& error) {
    hello_.error = std::string_view(error.what());
  }
}

File Arrival::await_board(std::string_view op,
                          ProcessWatch& watch,
                          std::chrono::milliseconds timeout) {
  const std::vector<int> awaited = {0};
  AwakeDeadline deadline(timeout);
  InterruptWatch interrupt;
  for (;;) {
    File file = mailbox_->receive();
    if (file.is_open()) {
      return file;
    }
    if (const std::vector<int> ended = watch.look(); !ended.empty()) {
      fail_start(hello_.rank, op, ended.front(), ProcessWatch::describe(ended, awaited));
    }
    if (interrupt.wants_end()) {
      fail_start(hello_.rank, op, hello_.rank, fmt::format("rank {} was interrupted", hello_.rank));
    }
    if (deadline.expired()) {
      fail_start(hello_.rank, op, 0,
                 fmt::format("rank 0 did not come within {} ms, expected the memory of the group",
                             timeout.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

std::unique_ptr<ProcessGroup> Arrival::meet(std::string_view op,
                                            std::span<const Hello> hellos,
                                            const Topology& topology,
                                            std::chrono::milliseconds timeout) {
  check_hellos(op, hellos);
  // Whoever comes to the board later than this is watched under its own number.
  ProcessWatch watch = watch_peers(hello_, hellos);
  const int size = static_cast<int>(hellos.size());
  const bool is_first = hello_.rank == 0;
  const auto board = is_first ? Board::make(size, board_file_)
                              : Board::join(size, await_board(op, watch, timeout));
  const auto num_neighbours = std::count_if(hellos.begin(), hellos.end(), [&](const Hello& hello) {
    return hello.cpus_hash == hello_.cpus_hash;
  });
  auto group =
      std::make_unique<ProcessGroup>(board, topology, timeout, static_cast<int>(num_neighbours),
                                     num_usable_cpus(), std::move(watch));
  for (int peer = 1; is_first && peer < size; ++peer) {
    group->wait_until(
        op, peer, [&] { return send_file(hellos[static_cast<size_t>(peer)].mailbox, board_file_); },
        [] { return std::string("expected room for the memory of the group"); });
  }
  group->await_peers(op);
  return group;
}

}  // namespace comm

std::unique_ptr<Group> make_process_group(const Bootstrap& bootstrap) {
  expect_ge(bootstrap.size, 1, "size");
  expect_le(bootstrap.size, comm::kMaxProcesses, "size");
  expect(bootstrap.all_gather != nullptr || bootstrap.size == 1, "all_gather is empty");
  const auto timeout = comm::resolve_timeout(bootstrap.timeout);
  const Topology topology =
      Topology::make(bootstrap.rank, bootstrap.size, bootstrap.ranks_per_node);
  comm::Arrival own(bootstrap.rank, bootstrap.size, bootstrap.ranks_per_node);
  std::vector<comm::Hello> hellos(static_cast<size_t>(bootstrap.size));
  if (bootstrap.size == 1) {
    hellos[0] = own.hello();
  } else {
    bootstrap.all_gather(&own.hello(), sizeof(comm::Hello), hellos.data());
  }
  auto group = own.meet("make_process_group", hellos, topology, timeout);
  worker_team::set_num_processes(group->num_neighbours());
  return group;
}

}  // namespace moebius
