// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what a group tells of its traffic and its waits, for every kind of group.
#include <vector>

#include "moebius/profile.h"
#include "tests/comm/group_test.h"

namespace moebius::testing {
namespace {

TEST_P(GroupTest, CountsTrafficByNode) {
  run([&](Group& group) {
    std::vector<std::byte> in(100);
    std::vector<std::byte> out(100 * static_cast<size_t>(group.size()));
    all_gather_bytes(group, "gather", in.data(), 100, out.data());
    const int neighbours = group.topology().node_size(group.topology().node()) - 1;
    EXPECT_EQ(group.traffic().intra_node_bytes, 100 * neighbours);
    EXPECT_EQ(group.traffic().inter_node_bytes, 100 * (group.size() - 1 - neighbours));
    group.count_traffic(group.rank(), 5);  // the own rank is no traffic
    EXPECT_EQ(group.traffic().intra_node_bytes, 100 * neighbours);
    std::vector<int64_t> expected(static_cast<size_t>(group.size()), 100);
    expected[static_cast<size_t>(group.rank())] = 0;
    EXPECT_EQ(group.traffic().to_rank, expected);
  });
}

TEST_P(GroupTest, TellsAProfileWhatIsSentAndWaitedFor) {
  run([&](Group& group) {
    Profile profile(Profile::Keep::kIntervals);
    std::vector<std::byte> in(100);
    std::vector<std::byte> out(100 * static_cast<size_t>(group.size()));
    group.barrier("before");
    const auto waited = group.waited();
    group.set_profile(&profile);
    {
      const Profile::Span span(&profile, "gather");
      all_gather_bytes(group, "gather", in.data(), 100, out.data());
    }
    group.set_profile(nullptr);
    std::chrono::nanoseconds told{0};
    for (const Profile::Interval& interval : profile.intervals()) {
      if (interval.name == Profile::kWait) {
        told += interval.end - interval.begin;
      } else {
        EXPECT_EQ(interval.name, "gather");
        EXPECT_EQ(interval.bytes, 100 * (group.size() - 1));
      }
    }
    EXPECT_EQ(told, group.waited() - waited);
    all_gather_bytes(group, "gather", in.data(), 100, out.data());
    EXPECT_EQ(profile.bytes(), 100 * (group.size() - 1));  // only of the call it listened to
  });
}

}  // namespace
}  // namespace moebius::testing
