// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank says, and tells the others, of failures that it hears in a given order.  Among real
// ranks the order is up to chance.
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

}  // namespace
}  // namespace moebius::comm
