// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Slowed-down links: nothing is seen too early, and the waiting times that are told are true.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "moebius/group.h"

namespace moebius::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kBytes = 1'000'000;
constexpr milliseconds kPerMessage{40};  // for kBytes over kLink
constexpr milliseconds kLatency{30};
constexpr SlowLink kLink{kLatency, kBytes * 25};

void run_two(const SlowLink& link, const std::function<void(Group&)>& body) {
  run_thread_ranks({.num_ranks = 2, .link = link}, body);
}

using Begins = std::array<std::atomic<Clock::time_point>, 2>;  // by rank

// A large message to the other rank and one from it.  It notes when this rank began.
struct Large {
  Large(Group& group, std::string_view op, Begins& began)
      : sent(static_cast<size_t>(kBytes), std::byte{7}), received(sent.size()) {
    const int peer = 1 - group.rank();
    const SendBlock send{peer, sent.data(), kBytes};
    const RecvBlock recv{peer, received.data(), kBytes};
    began[static_cast<size_t>(group.rank())] = Clock::now();
    exchange = group.start_exchange(op, {&send, 1}, {&recv, 1});
  }
  void wait() {
    exchange->wait();
    EXPECT_EQ(sent, received);
  }

  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  std::unique_ptr<Exchange> exchange;
};

TEST(SlowLink, BytesTakeTheirTimeAndMessagesOneAfterTheOther) {
  Begins began_first;
  Begins began_second;
  run_two(kLink, [&](Group& group) {
    const auto peer = static_cast<size_t>(1 - group.rank());
    Large first(group, "first", began_first);
    Large second(group, "second", began_second);
    const auto waits = Clock::now();
    first.wait();
    EXPECT_GE(Clock::now() - began_first[peer].load(), kPerMessage + kLatency);
    second.wait();
    EXPECT_GE(Clock::now() - began_first[peer].load(), 2 * kPerMessage + kLatency);
    EXPECT_LE(group.waited(), Clock::now() - waits);
  });
}

TEST(SlowLink, WaitingIsCounted) {
  run_two({milliseconds(100), 0}, [](Group& group) {
    EXPECT_EQ(group.waited().count(), 0);
    const auto begin = Clock::now();
    group.barrier("first");
    group.barrier("second");  // 100 ms after the peer began it, which it did after the first
    EXPECT_GT(group.waited(), milliseconds(50));
    EXPECT_LE(group.waited(), Clock::now() - begin);
  });
}

TEST(SlowLink, SmallMessagesPassLargeOnes) {
  Begins began;
  run_two({milliseconds(0), kBytes}, [&](Group& group) {  // a large message takes a second
    Large large(group, "large", began);
    int64_t sum[] = {group.rank() + 1};
    all_reduce_sum(group, "small", sum);
    EXPECT_EQ(sum[0], 3);
    EXPECT_FALSE(large.exchange->test());
    large.wait();
  });
}

TEST(SlowLink, SignalsComeAfterTheBytesBeforeThem) {
  Begins began;
  run_two(kLink, [&](Group& group) {
    const auto window = group.make_window("window", 64 + kBytes);
    const int peer = 1 - group.rank();
    const std::atomic_ref word(*reinterpret_cast<int64_t*>(window->local()));
    began[static_cast<size_t>(group.rank())] = Clock::now();
    std::memset(window->peer(peer) + 64, 5, static_cast<size_t>(kBytes));
    group.count_traffic(peer, kBytes);
    window->signal(peer, 0, 9);
    group.wait_until(
        "signal", peer, [&] { return word.load(std::memory_order_acquire) == 9; },
        [] { return "expected 9"; });
    EXPECT_GE(Clock::now() - began[static_cast<size_t>(peer)].load(), kPerMessage + kLatency);
    EXPECT_EQ(window->local()[64 + kBytes - 1], std::byte{5});
  });
}

TEST(SlowLink, WhoLeavesIsNotMissedWhileItsLastMessageTravels) {
  run_two({milliseconds(50), 0}, [](Group& group) {
    for (int i = 0; i < 3; ++i) {
      if (group.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(20));  // and so is the last to come
      }
      group.barrier("end of a call");
    }
  });
}

TEST(SlowLink, IsSetByTheEnvironment) {
  setenv("MOEBIUS_LINK_LATENCY_US", "25000", 1);
  setenv("MOEBIUS_LINK_MB_PER_S", "100", 1);
  Begins began;
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    Large large(group, "large", began);
    large.wait();
    EXPECT_GE(Clock::now() - began[static_cast<size_t>(1 - group.rank())].load(),
              milliseconds(10 + 25));
  });
  unsetenv("MOEBIUS_LINK_LATENCY_US");
  unsetenv("MOEBIUS_LINK_MB_PER_S");
}

TEST(SlowLink, OfANegativeSpeedIsRefused) {
  EXPECT_THROW(run_two({milliseconds(0), -1}, [](Group&) {}), InvalidArgument);
  EXPECT_THROW(run_two({milliseconds(-1), 0}, [](Group&) {}), InvalidArgument);
}

}  // namespace
}  // namespace moebius::testing
