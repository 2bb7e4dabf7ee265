// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <atomic>
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

}  // namespace

std::vector<DeadlyCase> deadly_cases() {
  return {
      {"dies_between_calls", die_between_calls},
      {"dies_with_bytes_under_way", die_with_bytes_under_way},
      {"goes_on_without_the_dead", go_on_without},
  };
}

}  // namespace moebius::testing
