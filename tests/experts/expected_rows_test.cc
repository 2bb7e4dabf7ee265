// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/expected_rows.h"

#include <gtest/gtest.h>

namespace moebius {
namespace {

TEST(ExpectedRows, AreWhatEvenRoutingSends) {
  const ExpectedRows alone{64, 64, 4, false};
  EXPECT_EQ(alone.of(100), 400);
  const ExpectedRows batched{256, 32, 8, true};
  EXPECT_EQ(batched.of(1024), 1024);  // 32 of 1024 for each of 32
  EXPECT_EQ(batched.of(1), 1);
  // 8 ranks: rows that were sent here have one selection of the 32 at least.
  const ExpectedRows sent{256, 32, 8, false};
  EXPECT_EQ(sent.of(100), 100);
  const ExpectedRows sent_far{256, 4, 8, false};
  EXPECT_EQ(sent_far.of(100), 100);
}

TEST(ExpectedRows, MostBelowIsTheLastOfFewer) {
  for (const ExpectedRows& rows : {ExpectedRows{64, 64, 4, false}, ExpectedRows{256, 32, 8, false},
                                   ExpectedRows{256, 4, 8, false}, ExpectedRows{7, 3, 2, false}}) {
    for (const int64_t expected : {1, 2, 100, 4096}) {
      const int64_t most = rows.most_below(expected);
      EXPECT_LT(rows.of(most), expected);
      EXPECT_GE(rows.of(most + 1), expected);
    }
  }
}

}  // namespace
}  // namespace moebius
