// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the GPU kernels of high throughput are told, as far as it can be tested without a GPU.
#include <gtest/gtest.h>

#include <set>

#include "comm/high_throughput/cuda/kernel_plan.h"
#include "comm/routing/row_layout.h"
#include "moebius/error.h"

namespace moebius::comm {
namespace {

constexpr int64_t kShared = 220 * 1024;

TEST(StagePlan, RowsShareStagesWithTheirScales) {
  const StagePlan plan = make_stage_plan(std::vector<PayloadShape>{{7168}, {224}}, kShared, 0, 0);
  EXPECT_EQ(plan.stage_bytes, 7424u);
  EXPECT_EQ(plan.warps, 15);
  EXPECT_EQ(plan.stages, 2);
  ASSERT_EQ(plan.items.size(), 1u);
  EXPECT_EQ(plan.items[0].bytes, 7392u);
  ASSERT_EQ(plan.segments.size(), 2u);
  EXPECT_EQ(plan.segments[1].stage_offset, 7168u);
}

TEST(StagePlan, WarpsAndStagesAreASetting) {
  const std::vector<PayloadShape> rows = {{14336}};
  EXPECT_EQ(make_stage_plan(rows, kShared, 0, 0).warps, 7);
  EXPECT_EQ(make_stage_plan(rows, kShared, 3, 5).stages, 5);
  EXPECT_THROW(make_stage_plan(rows, kShared, 8, 2), InvalidArgument);
  EXPECT_THROW(make_stage_plan(rows, kShared, 15, 0), InvalidArgument);
  EXPECT_THROW(make_stage_plan(rows, kShared, 17, 0), InvalidArgument);
}

// Every byte of every payload that goes in bulk is moved once, in pieces that are multiples of 16
// bytes and do not overlap in their stage.
TEST(StagePlan, PiecesCoverEveryRow) {
  const std::vector<std::vector<PayloadShape>> cases = {
      {},         {{90}},           {{16}},    {{4096}, {92}, {32}}, {{28672}},
      {{28688}},  {{32768}, {256}}, {{65536}}, {{240000}, {16}},     {{7168, false}, {224}},
      {{0}, {64}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const StagePlan plan = make_stage_plan(cases[i], kShared, 0, 0);
    ASSERT_EQ(plan.in_bulk.size(), cases[i].size());
    EXPECT_LE(plan.warps * plan.stages * static_cast<int64_t>(plan.stage_bytes), kShared);
    EXPECT_GE(plan.stages, 2);
    EXPECT_EQ(plan.stage_bytes % 128, 0u);
    std::vector<int64_t> covered(cases[i].size(), 0);
    size_t next = 0;
    for (const StageItem& item : plan.items) {
      EXPECT_EQ(item.first, next);
      uint32_t bytes = 0;
      for (; next < item.first + item.count; ++next) {
        const Segment& s = plan.segments[next];
        EXPECT_EQ(s.stage_offset, bytes);
        EXPECT_EQ(s.offset, covered[s.field]);
        EXPECT_EQ(s.bytes % 16, 0u);
        EXPECT_GT(s.bytes, 0u);
        covered[s.field] += s.bytes;
        bytes += s.bytes;
      }
      EXPECT_EQ(item.bytes, bytes);
      EXPECT_LE(bytes, plan.stage_bytes);
    }
    EXPECT_EQ(next, plan.segments.size());
    for (size_t f = 0; f < cases[i].size(); ++f) {
      const PayloadShape& shape = cases[i][f];
      const bool expect_bulk = shape.is_aligned && shape.row_bytes > 0 && shape.row_bytes % 16 == 0;
      EXPECT_EQ(plan.in_bulk[f] != 0, expect_bulk);
      EXPECT_EQ(covered[f], expect_bulk ? shape.row_bytes : 0);
    }
  }
}

TEST(StagePlan, RowsBeyondThePlanAreRefused) {
  EXPECT_NO_THROW(make_stage_plan(std::vector<PayloadShape>{{64 * 14336}}, kShared, 0, 0));
  EXPECT_THROW(make_stage_plan(std::vector<PayloadShape>{{65 * 14336}}, kShared, 0, 0),
               InvalidArgument);
}

TEST(ControlLayout, NoTwoWritersShareAWord) {
  for (const int ranks : {1, 2, 3, 8, 64, 160}) {
    const ControlLayout layout{ranks, 33};
    std::set<int64_t> words;
    const auto add = [&](int64_t offset) {
      EXPECT_EQ(offset % 8, 0);
      EXPECT_LT(offset, layout.bytes());
      EXPECT_TRUE(words.insert(offset).second) << offset;
    };
    for (int source = 0; source < ranks; ++source) {
      add(ControlLayout::kAbort + 8 * source);
      for (uint32_t epoch : {7u, 8u}) {
        for (int w = 0; w < layout.notice_words(); ++w) {
          add(layout.notice(epoch, source) + 8 * w);
        }
      }
      add(layout.done(source));
      add(layout.ready(source));
      for (int wave = 0; wave < kWaves; ++wave) {
        add(layout.arrived(wave, source));
      }
    }
    EXPECT_EQ(layout.notice(3, 0), layout.notice(5, 0));
  }
}

TEST(DispatchShared, PartsFollowEachOther) {
  const DispatchShared shared{8, 256, 5, 14, 2, 7424};
  EXPECT_EQ(shared.barriers(), 14u * 2 * 7424);
  EXPECT_EQ(shared.field_base() - shared.barriers(), 14u * 2 * 8);
  EXPECT_EQ(shared.field_base() % 8, 0u);
  EXPECT_EQ(shared.notices() - shared.field_base(), 5u * 8 * 8);
  EXPECT_EQ(shared.waves_sent() - shared.histogram(), 256u * 4);
  EXPECT_EQ(shared.bytes() - shared.waves_sent(), kWaves * 4u);
  DispatchShared in_waves = shared;
  in_waves.in_waves = true;
  EXPECT_EQ(in_waves.bytes() - in_waves.due(), 14u * kWaves * kWaveChunks * 4);
  EXPECT_LT(in_waves.bytes(), 227u * 1024);
}

// What is left of shared memory must hold two stages of a long row for some warps.
TEST(DispatchShared, LeavesRoomForRowsOfMostRanks) {
  constexpr int64_t kBytes = 225 * 1024;
  const DispatchShared shared{kMaxCudaRanks, 256, 5, kMaxWarps, kMaxStages};
  const PayloadShape row{7168 * 2, true};
  const StagePlan plan = make_stage_plan({&row, 1}, kBytes - shared.bytes(), 0, 0);
  EXPECT_GE(plan.warps, 3);
  EXPECT_EQ(plan.stages, 2);
  const CombineShared combine{kMaxCudaRanks, kPushWarps, 2};
  EXPECT_LT(combine.bytes(), kBytes);
  EXPECT_EQ(combine.windows() % 8, 0u);
  EXPECT_EQ(combine.slots() - combine.windows(), kMaxCudaRanks * sizeof(CombineWindows));
}

// This holds whichever epochs the dispatches have among the combines.
TEST(Refresh, ComesInTimeWhateverTheParity) {
  for (const uint32_t first : {1u, 2u, 0xfff00001u}) {
    uint32_t last = first - 1;
    uint32_t num_refreshes = 0;
    for (uint32_t i = 0; i < 3 * kCallsBetweenRefreshes; i += 2) {
      const uint32_t epoch = first + i;
      ASSERT_LT(epoch - last, kCallsBetweenRefreshes + 2);
      if (is_refresh_due(epoch, last)) {
        last = epoch;
        ++num_refreshes;
      }
    }
    EXPECT_GE(num_refreshes, 2u);
  }
}

TEST(ExpertsPerWave, ThereAreWavesForAllExperts) {
  EXPECT_EQ(experts_per_wave(1), 1);
  EXPECT_EQ(experts_per_wave(kWaves - 1), 1);
  EXPECT_EQ(experts_per_wave(kWaves), 2);
  for (int experts = 1; experts < 600; ++experts) {
    const int last = experts - 1;
    EXPECT_LT(1 + last / experts_per_wave(experts), kWaves) << experts;
  }
}

TEST(FieldSpan, AgreesWithRowLayout) {
  const RowLayout layout({7168, 92}, {.ids = 32, .weights = 32});
  for (const int64_t rows : {0, 1, 77, 4096}) {
    int64_t at = 0;
    for (int f = 0; f < layout.num_fields(); ++f) {
      EXPECT_EQ(layout.offset(f, rows), at);
      at += field_span(layout.field_bytes(f), rows);
    }
    EXPECT_EQ(layout.block_bytes(rows), at);
  }
}

TEST(PartBegin, PartsAreEvenAndWhole) {
  for (const int64_t n : {0, 1, 7, 8, 4097}) {
    for (const int parts : {1, 3, 8}) {
      EXPECT_EQ(part_begin(n, 0, parts), 0);
      EXPECT_EQ(part_begin(n, parts, parts), n);
      for (int i = 0; i < parts; ++i) {
        const int64_t size = part_begin(n, i + 1, parts) - part_begin(n, i, parts);
        EXPECT_GE(size, n / parts);
        EXPECT_LE(size, n / parts + 1);
      }
    }
  }
}

}  // namespace
}  // namespace moebius::comm
