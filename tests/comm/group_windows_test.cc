// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of windows, for every kind of group.
#include <cstdint>
#include <string>

#include "tests/comm/group_test.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

TEST_P(GroupTest, WindowsAreSharedWithinANode) {
  run([&](Group& group) {
    constexpr int64_t kBytes = 1000;
    const auto window = group.make_window("window", kBytes);
    EXPECT_EQ(window->bytes(), kBytes);
    EXPECT_EQ(window->local(), window->peer(group.rank()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(window->local()) % 256, 0u);
    EXPECT_TRUE(std::all_of(window->local(), window->local() + kBytes,
                            [](std::byte b) { return b == std::byte{0}; }));
    for (int peer = 0; peer < group.size(); ++peer) {
      ASSERT_EQ(window->peer(peer) != nullptr, group.topology().same_node(peer)) << peer;
    }
    // Each rank writes its number into a slot at each neighbour, then raises the neighbour's flag.
    const auto slot = [&](int owner, int writer) {
      return reinterpret_cast<int32_t*>(window->peer(owner)) + 1 + writer;
    };
    const auto flag = [&](int owner) {
      return std::atomic_ref<int32_t>(*reinterpret_cast<int32_t*>(window->peer(owner)));
    };
    group.barrier("all looked at the zeros");
    int neighbours = 0;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (group.topology().same_node(peer)) {
        *slot(peer, group.rank()) = group.rank() * 10 + peer;
        flag(peer).fetch_add(1, std::memory_order_release);
        ++neighbours;
      }
    }
    group.wait_until(
        "signals", group.rank(),
        [&] { return flag(group.rank()).load(std::memory_order_acquire) == neighbours; },
        [] { return "expected every neighbour's signal"; });
    for (int peer = 0; peer < group.size(); ++peer) {
      if (group.topology().same_node(peer)) {
        EXPECT_EQ(*slot(group.rank(), peer), peer * 10 + group.rank());
      }
    }
    group.barrier("before the windows go");
  });
}

TEST_P(GroupTest, WindowMemoryLivesAsLongAsSomebodyMapsIt) {
  run([&](Group& group) {
    auto window = group.make_window("window", 64);
    window->local()[7] = static_cast<std::byte>(group.rank() + 1);
    group.barrier("written");
    if (group.rank() == 0) {
      window.reset();
    }
    group.barrier("rank 0 has dropped its window");
    if (window && window->peer(0) != nullptr) {
      EXPECT_EQ(window->peer(0)[7], std::byte{1});
    }
    const auto empty = group.make_window("empty", 0);
    EXPECT_EQ(empty->bytes(), 0);
  });
}

TEST_P(GroupTest, WindowsOfDifferentSizesAreRefusedByAll) {
  run([&](Group& group) {
    const int last = group.size() - 1;
    const std::string refusal =
        message_of([&] { group.make_window("window", group.rank() == last ? 8192 : 4096); });
    if (group.size() == 1) {
      EXPECT_EQ(refusal, "no error");
    } else {
      expect_mentions(refusal, {"4096", "8192", "rank " + std::to_string(last)});
    }
    group.barrier("still usable");
  });
}

// A system that gives memory before there is any would kill a rank that writes to it.
TEST_P(GroupTest, WindowsLargerThanTheMemoryAreRefusedByAll) {
  run([](Group& group) {
    const int64_t part = int64_t{1} << 50;
    const std::string refusal = message_of<OutOfMemory>([&] { group.make_window("window", part); });
    expect_mentions(refusal, {"out of memory: ", " bytes on cpu: ", " bytes are available"});
    const int64_t of_node = group.shares_address_space() ? 1 : group.topology().node_size(0);
    expect_mentions(refusal, std::to_string(of_node * part) + " bytes on cpu");
    group.barrier("still usable");
  });
}

}  // namespace
}  // namespace moebius::testing
