// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of the jobs that mpi_failure_test.cc starts:
//   mpi_failure_rank CASE GUILTY
// Prints, in one write, "report RANK MILLISECONDS MESSAGE" for the error that ended the case here,
// or "report RANK MILLISECONDS" for none.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/comm/failure_cases.h"

namespace moebius::testing {
namespace {

// Beside the cases that threads have, too: a rank that dies.
void die_between_calls(Group& group, int guilty) {
  group.barrier("layout");
  if (group.rank() == guilty) {
    raise(SIGKILL);
  }
  group.barrier("dispatch");
}

void die_with_bytes_under_way(Group& group, int guilty) {
  group.barrier("layout");
  const std::vector<std::byte> out(4'000'000);
  std::vector<std::byte> in(out.size() * static_cast<size_t>(group.size()));
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int peer = 0; peer < group.size(); ++peer) {
    sends.push_back({peer, out.data(), 4'000'000});
    recvs.push_back({peer, in.data() + peer * 4'000'000, 4'000'000});
  }
  const auto exchange = group.start_exchange("dispatch", sends, recvs);
  if (group.rank() == guilty) {
    raise(SIGKILL);
  }
  exchange->wait();
  group.barrier("combine");
}

// The others give the dead rank up and go on with signals in windows.
void go_on_without(Group& group, int guilty) {
  const auto window = group.make_window("signals", group.size() * 8);
  const auto signal = [&](int owner, int writer) {
    return std::atomic_ref<int64_t>(reinterpret_cast<int64_t*>(window->peer(owner))[writer]);
  };
  const auto round = [&](int64_t number) {
    for (int peer = 0; peer < group.size(); ++peer) {
      signal(peer, group.rank()).store(number, std::memory_order_release);
    }
    for (int peer = 0; peer < group.size(); ++peer) {
      if (!group.is_dead(peer)) {
        group.wait_until(
            "round", peer,
            [&] { return signal(group.rank(), peer).load(std::memory_order_acquire) >= number; },
            [&] { return fmt::format("expected signal {}", number); });
      }
    }
  };
  round(1);
  if (group.rank() == guilty) {
    raise(SIGKILL);
  }
  std::string first_error;
  try {
    round(2);
  } catch (const CommError& error) {
    first_error = error.what();
    expect_eq(error.peer(), guilty, "the rank to give up");
  }
  group.set_dead(guilty, true);
  for (int64_t number = 2; number < 100; ++number) {
    round(number);
  }
  throw CommError(first_error + "; went on for 98 rounds", group.rank(), guilty);
}

struct DeadlyCase {
  const char* name;
  void (*body)(Group&, int);
};
constexpr DeadlyCase kDeadlyCases[] = {
    {"dies_between_calls", die_between_calls},
    {"dies_with_bytes_under_way", die_with_bytes_under_way},
    {"goes_on_without_the_dead", go_on_without},
};

int run(const std::string& name, int guilty) {
  std::function<void(Group&, int)> body;
  std::chrono::milliseconds timeout = short_timeout(1);
  for (const DeadlyCase& c : kDeadlyCases) {
    if (name == c.name) {
      body = c.body;
    }
  }
  if (!body) {
    const FailureCase& c = failure_case(name);
    body = c.body;
    timeout = timeout_of(c, 1);
  }

  const auto group = make_mpi_group({.timeout = timeout});
  const int rank = group->rank();
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
  // While the group is alive: the launcher ends all once the first process has gone.
  const std::string line = fmt::format("report {} {} {}\n", rank, took.count(), message);
  return write(STDOUT_FILENO, line.data(), line.size()) > 0 && message.empty() ? 0 : 1;
}

}  // namespace
}  // namespace moebius::testing

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpi_failure_rank CASE GUILTY\n");
    return 2;
  }
  return moebius::testing::run(argv[1], std::atoi(argv[2]));
}
