// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "comm/group/processes/process_group.h"
#include "comm/group/runner.h"
#include "core/worker_team.h"
#include "moebius/deadline.h"

namespace moebius {

namespace {

using comm::Board;
using comm::Failure;

// The failure of a rank whose process has ended, for `reason`: "rank 2 was killed by signal 9".
Failure failure_of(Board& board, int rank, const Failure::Reason& reason) {
  const Board::Part& part = board.part(rank);
  return comm::make_failure(rank, {part.op.get(), part.epoch}, rank, reason);
}

std::unique_ptr<Group> make_group(const ProcessGroupOptions& options,
                                  const std::shared_ptr<Board>& board,
                                  int rank,
                                  std::chrono::milliseconds timeout) {
  const comm::RankCpus cpus(options.num_ranks, options.pin);
  worker_team::set_num_processes(cpus.pin(rank) ? 1 : options.num_ranks);
  auto host = std::make_unique<comm::ProcessGroup>(
      board, Topology::make(rank, options.num_ranks, options.ranks_per_node), timeout,
      options.num_ranks, cpus.num_cpus());
  if (options.devices.empty()) {
    return host;
  }
  const Device device = options.devices[static_cast<size_t>(rank)];
  return options.nccl ? make_nccl_group(std::move(host), device)
                      : make_cuda_group(std::move(host), device);
}

// What the forked process does; it does not return.  When the body fails, the process ends without
// destroying its group, which may need peers that are gone.
[[noreturn]] void run_child(const ProcessGroupOptions& options,
                            const std::shared_ptr<Board>& board,
                            int rank,
                            std::chrono::milliseconds timeout,
                            const std::function<void(Group&)>& body) {
  std::unique_ptr<Group> group;
  bool has_failed = true;
  bool is_comm_error = false;
  comm::FixedText<2048> message;
  try {
    group = make_group(options, board, rank, timeout);
    body(*group);
    group.reset();
    has_failed = false;
  } catch (const CommError& error) {
    message = std::string_view(error.what());
    is_comm_error = true;
  } catch (...) {
    message = comm::current_exception_text();
  }
  if (has_failed) {
    if (message.empty()) {
      message = std::string_view("an exception without a message");
    }
    board->note_failed(rank, is_comm_error);
    board->part(rank).error.set(message.view());
    if (group) {
      group->abort(message.view());
    } else {
      board->tell(rank,
                  failure_of(*board, rank,
                             Failure::Reason::format("rank {} failed: {}", rank, message.view())));
    }
    (void)group.release();
  }
  std::fflush(nullptr);
  _exit(has_failed ? 1 : 0);
}

std::string how_it_ended(int rank, int status) {
  return WIFSIGNALED(status)
             ? fmt::format("rank {} was killed by signal {}", rank, WTERMSIG(status))
             : fmt::format("rank {} ended with status {}", rank, WEXITSTATUS(status));
}

}  // namespace

void run_process_ranks(const ProcessGroupOptions& options,
                       const std::function<void(Group&)>& body,
                       std::vector<std::string>* errors) {
  const int num_ranks = options.num_ranks;
  const auto timeout = comm::check_options(options, comm::kMaxProcesses);
  const auto board = Board::make(num_ranks, comm::File::make_memory(Board::bytes_for(num_ranks)));
  std::vector<pid_t> children(static_cast<size_t>(num_ranks), -1);
  const auto kill_all = [&] {
    for (const pid_t child : children) {
      if (child > 0) {
        kill(child, SIGKILL);
      }
    }
  };
  const auto died = [&](int rank, const std::string& how) {
    board->note_failed(rank, false);
    if (board->part(rank).error.get().empty()) {
      board->part(rank).error.set(how);
    }
    board->tell(num_ranks, failure_of(*board, rank, std::string_view(how)));
  };

  std::fflush(nullptr);  // otherwise the children write what is buffered once more
  const pid_t parent = getpid();
  int num_running = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      // The child ends with its parent, however that ends.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) {
        run_child(options, board, rank, timeout, body);
      }
      _exit(1);
    }
    if (child < 0) {
      died(rank, fmt::format("rank {} has no process: fork: {}", rank, std::strerror(errno)));
      break;
    }
    children[static_cast<size_t>(rank)] = child;
    ++num_running;
  }

  // Once a rank has failed, the others find out within the timeout.  Those that do not end are
  // killed, and as soon as all others have ended those that are stopped: nothing would end them.
  constexpr std::chrono::seconds kGrace{10};
  std::optional<Deadline> deadline;
  while (num_running > 0) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      pid_t& child = children[static_cast<size_t>(rank)];
      int status = 0;
      if (child <= 0) {
        continue;
      }
      const pid_t ended = waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED);
      if (ended == child && (WIFSTOPPED(status) || WIFCONTINUED(status))) {
        board->part(rank).is_stopped = WIFSTOPPED(status);
        continue;
      }
      // Where SIGCHLD is ignored, the system has dropped the status.
      const bool is_lost = ended < 0 && errno == ECHILD;
      if (ended == child || is_lost) {
        child = -1;
        board->part(rank).is_stopped = false;
        --num_running;
        const bool has_said_why = !board->part(rank).error.get().empty();
        // A rank that calls exit() in its body ends well for the system, but not for its peers.
        const bool ended_well = board->part(rank).has_left && (is_lost || status == 0);
        if (!has_said_why && !ended_well) {
          died(rank, is_lost ? fmt::format("rank {} ended, its status is lost", rank)
                             : how_it_ended(rank, status));
        }
      }
    }
    if (!deadline && board->first_failed() >= 0) {
      deadline = Deadline::after(2 * timeout + kGrace);
    }
    int num_stopped = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      num_stopped += board->part(rank).is_stopped ? 1 : 0;
    }
    if (deadline && (deadline->expired() || num_stopped == num_running)) {
      kill_all();
      deadline = Deadline::after(std::chrono::hours(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  if (errors != nullptr) {
    errors->clear();
    for (int rank = 0; rank < num_ranks; ++rank) {
      errors->push_back(board->part(rank).error.get());
    }
  }
  const int failed = board->first_failed();
  if (failed >= 0) {
    throw Error(board->part(failed).error.get());
  }
}

}  // namespace moebius
