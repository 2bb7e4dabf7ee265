// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/piped_processes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "moebius/deadline.h"
#include "moebius/error.h"
#include "tests/error_text.h"

namespace moebius::testing {

namespace {

struct Pipe {
  int read = -1;
  int write = -1;

  void make() {
    int ends[2];
    expect_eq(pipe(ends), 0, "result of pipe()");
    read = ends[0];
    write = ends[1];
  }
  void close_read() { close(std::exchange(read, -1)); }
  void close_write() { close(std::exchange(write, -1)); }
};

// pipes[from][to]
using Pipes = std::vector<std::vector<Pipe>>;

void read_all(int fd, std::byte* out, int64_t bytes, int peer, const Deadline& deadline) {
  while (bytes > 0) {
    pollfd wanted{fd, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    if (poll(&wanted, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0) {
      throw CommError(fmt::format("rank {} sends nothing through its pipe", peer), -1, peer);
    }
    const ssize_t n = read(fd, out, static_cast<size_t>(bytes));
    if (n <= 0) {
      throw CommError(fmt::format("rank {} has closed its pipe", peer), -1, peer);
    }
    out += n;
    bytes -= n;
  }
}

void all_gather(Pipes& pipes,
                int rank,
                std::chrono::milliseconds timeout,
                const void* in,
                int64_t bytes,
                void* out) {
  const Deadline deadline = Deadline::after(timeout);
  const auto size = static_cast<int>(pipes.size());
  for (int peer = 0; peer < size; ++peer) {
    const Pipe& to = pipes[static_cast<size_t>(rank)][static_cast<size_t>(peer)];
    // They are few enough for a pipe.  Whether the peer is gone is found by the reads, so that the
    // others get these bytes in any case.
    (void)!write(to.write, in, static_cast<size_t>(bytes));
  }
  for (int peer = 0; peer < size; ++peer) {
    read_all(pipes[static_cast<size_t>(peer)][static_cast<size_t>(rank)].read,
             static_cast<std::byte*>(out) + peer * bytes, bytes, peer, deadline);
  }
}

// What a child writes into its report pipe when it ends by itself.
struct Report {
  int peer = -1;
  int64_t ended_ns = 0;
  std::array<char, 1024> message{};
};

[[noreturn]] void run_child(Pipes& pipes,
                            int rank,
                            const ProcessGroupOptions& options,
                            int report_fd,
                            const std::function<void(const Bootstrap&)>& body) {
  std::signal(SIGPIPE, SIG_IGN);
  for (int from = 0; from < options.num_ranks; ++from) {
    for (int to = 0; to < options.num_ranks; ++to) {
      Pipe& each = pipes[static_cast<size_t>(from)][static_cast<size_t>(to)];
      if (to != rank) {
        each.close_read();
      }
      if (from != rank) {
        each.close_write();
      }
    }
  }
  Report report;
  const auto note = [&](const char* message, int peer) {
    std::strncpy(report.message.data(), message, report.message.size() - 1);
    report.peer = peer;
  };
  try {
    body(
        {.rank = rank,
         .size = options.num_ranks,
         .all_gather = [&](const void* in, int64_t bytes,
                           void* out) { all_gather(pipes, rank, options.timeout, in, bytes, out); },
         .timeout = options.timeout,
         .ranks_per_node = options.ranks_per_node});
  } catch (const CommError& error) {
    note(error.what(), error.peer());
  } catch (const std::exception& error) {
    note(error.what(), -1);
  }
  report.ended_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  const bool is_written = write(report_fd, &report, sizeof(report)) == sizeof(report);
  std::fflush(nullptr);
  _exit(is_written && report.message[0] == '\0' ? 0 : 1);
}

}  // namespace

PipedProcesses::PipedProcesses(const ProcessGroupOptions& options,
                               const std::function<void(const Bootstrap&)>& body) {
  const auto n = static_cast<size_t>(options.num_ranks);
  Pipes pipes(n, std::vector<Pipe>(n));
  for (auto& row : pipes) {
    for (Pipe& each : row) {
      each.make();
    }
  }
  std::fflush(nullptr);
  const pid_t parent = getpid();
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    Pipe report;
    report.make();
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) {
        _exit(1);
      }
      report.close_read();
      run_child(pipes, rank, options, report.write, body);
    }
    report.close_write();
    pids_.push_back(child);
    reports_.push_back(report.read);
  }
  for (auto& row : pipes) {
    for (Pipe& each : row) {
      each.close_read();
      each.close_write();
    }
  }
}

PipedProcesses::~PipedProcesses() {
  wait(std::chrono::milliseconds(0));
  for (const int fd : reports_) {
    close(fd);
  }
}

std::vector<PipedReport> PipedProcesses::wait(std::chrono::milliseconds most, int stays) {
  const Deadline deadline = Deadline::after(most);
  std::vector<PipedReport> reports(pids_.size());
  const auto is_running = [&](size_t rank) { return pids_[rank] > 0; };
  const auto collect = [&](size_t rank, int options) {
    if (is_running(rank) && waitpid(pids_[rank], &reports[rank].status, options) == pids_[rank]) {
      pids_[rank] = -1;
      Report report;
      PipedReport& out = reports[rank];
      out.has_reported = read(reports_[rank], &report, sizeof(report)) == sizeof(report);
      if (out.has_reported) {
        out.message = report.message.data();
        out.peer = report.peer;
        out.ended =
            std::chrono::steady_clock::time_point(std::chrono::nanoseconds(report.ended_ns));
      }
    }
  };
  const auto others_run = [&] {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      if (is_running(rank) && static_cast<int>(rank) != stays) {
        return true;
      }
    }
    return false;
  };
  while (others_run() && !deadline.expired()) {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      collect(rank, WNOHANG);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (is_running(rank)) {
      kill(pids_[rank], SIGKILL);
      collect(rank, 0);
    }
  }
  return reports;
}

void expect_well(const std::vector<PipedReport>& reports) {
  for (const PipedReport& report : reports) {
    EXPECT_TRUE(report.has_reported);
    EXPECT_EQ(report.message, "");
  }
}

void expect_named(const std::vector<PipedReport>& reports, int guilty) {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (static_cast<int>(rank) != guilty) {
      EXPECT_TRUE(reports[rank].has_reported) << "rank " << rank << " has not ended";
      expect_mentions(reports[rank].message, fmt::format("rank {}", guilty));
    }
  }
}

void expect_blamed(const std::vector<PipedReport>& reports,
                   int guilty,
                   std::chrono::steady_clock::time_point when,
                   std::chrono::milliseconds limit) {
  expect_named(reports, guilty);
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const PipedReport& report = reports[rank];
    if (static_cast<int>(rank) == guilty || !report.has_reported) {
      continue;
    }
    // While the group is made, ranks that have gathered less give up in the caller's gather without
    // telling why, and are named beside the guilty one.
    EXPECT_TRUE(report.peer == guilty ||
                report.message.find("make_process_group") != std::string::npos)
        << "rank " << rank << " says " << report.message;
    EXPECT_LT(report.ended - when, limit) << "rank " << rank << " says " << report.message;
  }
}

}  // namespace moebius::testing
