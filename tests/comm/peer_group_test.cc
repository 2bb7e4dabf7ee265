// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These tests say in which order a rank hears of failures, and look at what it says and tells then.
// Among real ranks the order is up to chance.
#include <gtest/gtest.h>

#include <string>

#include "tests/comm/lone_group.h"
#include "tests/error_text.h"

namespace moebius::comm {
namespace {

using testing::LoneGroup;

// The error of a barrier of this name.
std::string error_in(Group& group, std::string_view op) {
  return testing::message_of<CommError>([&] { group.barrier(op); });
}

// Rank 2 is in "combine", the others in "dispatch".  Rank 3 finds out, and rank 0 hears of it first
// from rank 2.
TEST(PeerGroup, WhoHearsOfAMismatchFromTheGuiltyRankBlamesTheGuiltyRank) {
  LoneGroup guilty(2, 4);
  guilty.hear(make_mismatch(3, {"dispatch", 1}, 2, "combine"));
  const std::string error = error_in(guilty, "combine");
  EXPECT_EQ(error,
            "rank 2: combine, epoch 1: rank 3 is in \"dispatch\" at epoch 1, expected \"combine\"");
  guilty.abort(error);
  LoneGroup other(0, 4);
  for (const Failure& failure : guilty.told) {
    other.hear(failure);
  }
  EXPECT_EQ(error_in(other, "dispatch"),
            "rank 0: dispatch, epoch 1: rank 2 is in \"combine\" at epoch 1, expected \"dispatch\" "
            "(found by rank 3 in dispatch, epoch 1)");
}

TEST(PeerGroup, NamesOfOperationsMayBeLongerThanWhatIsTold) {
  const std::string dispatch = "dispatch of the rows of " + std::string(100, 'a');
  const std::string combine = "combine of the rows of " + std::string(100, 'b');
  LoneGroup group(0, 4);
  group.hear(make_mismatch(2, {combine, 1}, 3, dispatch));
  const std::string error = error_in(group, dispatch);
  testing::expect_mentions(error, {"rank 2 is in \"combine of", "expected \"dispatch of"});
}

// Rank 0 waits for rank 1, which waits for rank 2 and gives up when rank 0 is about to.
TEST(PeerGroup, WhoHasJustGivenUpIsNotBlamed) {
  LoneGroup group(0, 3, std::chrono::milliseconds(50));
  bool has_given_up = false;
  group.sight_of = [&](int peer) {
    has_given_up = true;  // before it is seen
    return PeerSight{7, peer == 1 ? "combine" : "layout", -1, "", false};
  };
  group.on_hear = [&] {
    if (has_given_up) {
      Failure failure = make_failure(1, {"combine", 7}, 2, std::string_view("rank 2 did not come"));
      failure.is_silence = true;
      group.hear(failure);
    }
  };
  try {
    group.wait_until(
        "receive", 1, [] { return false; }, [] { return std::string("a flag"); });
    ADD_FAILURE() << "the wait ended";
  } catch (const CommError& error) {
    EXPECT_EQ(error.peer(), 2);
    EXPECT_STREQ(
        error.what(),
        "rank 0: receive, epoch 0: rank 2 did not come (found by rank 1 in combine, epoch 7)");
  }
  EXPECT_TRUE(group.told.empty());
}

TEST(PeerGroup, WhoComesWithTheDeadlineHasCome) {
  LoneGroup group(0, 2, std::chrono::milliseconds(50));
  bool has_come = false;
  group.sight_of = [&](int) {
    has_come = true;
    return PeerSight{};
  };
  group.wait_until(
      "receive", 1, [&] { return has_come; }, [] { return std::string("a flag"); });
  EXPECT_TRUE(group.told.empty());
}

// Rank 1 fails after a call that this rank has not looked at since.
TEST(PeerGroup, ACallThatTheFailedRankHasEndedEndsHere) {
  LoneGroup group(0, 2);
  bool has_come = false;
  group.on_hear = [&] {
    if (!has_come) {
      has_come = true;
      group.hear(make_failure(1, {"first", 1}, 1, std::string_view("rank 1 failed")));
    }
  };
  group.wait_until(
      "first", 1, [&] { return has_come; }, [] { return std::string("a flag"); });
  EXPECT_EQ(error_in(group, "second"), "rank 0: second, epoch 1: rank 1 failed");
}

}  // namespace
}  // namespace moebius::comm
