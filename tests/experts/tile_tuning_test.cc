// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/tile_tuning.h"

#include <gtest/gtest.h>

#include <string>

#include "moebius/error.h"
#include "tests/scoped_setting.h"

namespace moebius::cpu {
namespace {

using testing::ScopedSetting;

TEST(TileTuning, FollowsTheCaches) {
  EXPECT_EQ(tile_tuning({32 << 10, 512 << 10, 0}).fetch_ahead, 1024);
  EXPECT_EQ(tile_tuning({48 << 10, 2 << 20, 0}).fetch_ahead, 4096);
  EXPECT_EQ(tile_tuning({48 << 10, 2 << 20, 0}).panel_bytes, 5 << 18);
  EXPECT_EQ(tile_tuning({64 << 10, 4 << 20, 0}).panel_bytes, 5 << 19);
  EXPECT_EQ(tile_tuning({32 << 10, 512 << 10, 0}).panel_bytes, 5 << 18);
}

TEST(TileTuning, IsUsualWhereCachesAreUnknown) {
  EXPECT_EQ(tile_tuning(CpuCaches{}).fetch_ahead, 1024);
  EXPECT_EQ(tile_tuning(CpuCaches{}).panel_bytes, 5 << 18);
}

TEST(TileTuning, SettingsOverride) {
  const ScopedSetting ahead("MOEBIUS_FETCH_AHEAD", "2048");
  const ScopedSetting panels("MOEBIUS_PANEL_BYTES", "1000000");
  EXPECT_EQ(tile_tuning().fetch_ahead, 2048);
  EXPECT_FALSE(tile_tuning().fetch_by_pages);
  EXPECT_EQ(tile_tuning().panel_bytes, 1000000);
}

TEST(TileTuning, ABadSettingIsNamedWithItsRange) {
  try {
    const ScopedSetting ahead("MOEBIUS_FETCH_AHEAD", "far");
    tile_tuning();
    FAIL() << "a setting of \"far\" was taken";
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "MOEBIUS_FETCH_AHEAD is \"far\", expected a whole number from 0 to 1048576"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace moebius::cpu
