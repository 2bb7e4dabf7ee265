// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "tests/comm/failure_cases.h"

namespace moebius::testing {

namespace {

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
  const auto [sends, recvs] = gather_blocks(group.size(), out.data(), 4'000'000, in.data());
  const auto exchange = group.start_exchange("dispatch", sends, recvs);
  if (group.rank() == guilty) {
    raise(SIGKILL);
  }
  exchange->wait();
  group.barrier("combine");
}

// The others exclude the dead rank and go on with signals in windows.
void go_on_without(Group& group, int guilty) {
  const auto window = group.make_window("signals", group.size() * 8);
  signal_all(group, *window, 1);
  if (group.rank() == guilty) {
    raise(SIGKILL);
  }
  std::string first_error;
  try {
    signal_all(group, *window, 2);
  } catch (const CommError& error) {
    first_error = error.what();
    expect_eq(error.peer(), guilty, "the rank to give up");
  }
  group.set_dead(guilty, true);
  // They are few because a round of three processes on two busy CPUs may take 15 ms.
  for (int64_t number = 2; number < 25; ++number) {
    signal_all(group, *window, number);
  }
  throw CommError(first_error + "; went on for 23 rounds", group.rank(), guilty);
}

}  // namespace

std::vector<DeadlyCase> deadly_cases() {
  return {
      {"dies_between_calls", die_between_calls},
      {"dies_with_bytes_under_way", die_with_bytes_under_way},
      {"goes_on_without_the_dead", go_on_without},
  };
}

void wait_in_a_circle(Group& group, int stopped) {
  // A rank shows whom it waits for after its second look.  On a busy machine later looks come
  // slowly.
  constexpr int kStopsAtLook = 3;
  int num_looks = 0;
  group.wait_until(
      "signal", (group.rank() + 1) % group.size(),
      [&] {
        if (++num_looks == kStopsAtLook && group.rank() == stopped) {
          raise(SIGSTOP);
        }
        return false;
      },
      [] { return std::string("expected a signal"); });
}

}  // namespace moebius::testing
