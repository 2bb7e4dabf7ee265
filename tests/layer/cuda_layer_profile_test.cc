// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Profiles of layers on GPUs: stages and intervals have the times that they took.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "moebius/profile.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

class CudaLayerProfile : public GpuTest {};

TEST_F(CudaLayerProfile, StagesHaveTimes) {
  RankLayer rank({.name = "standard"}, {}, Place{Device::cuda(0)}, nullptr);
  const Tensor hidden = random_tensor({64, kHidden}, DType::kBF16, 1);
  rank.forward(hidden);
  Profile profile;
  rank.forward(hidden, DType::kBF16, &profile);
  for (const Profile::Stage& stage : profile.stages()) {
    EXPECT_GT(stage.total.count(), 0) << stage.name;
    EXPECT_LT(stage.total, std::chrono::milliseconds(50)) << stage.name;
  }
  EXPECT_EQ(stage_names(profile),
            (std::vector<std::string>{"router", "shared", "prepare", "experts", "finalize"}));
}

class CudaLayerProfileRanks : public GpuRanksTest {};

// The flight of a part ends when that part has arrived, not when the last one has.
TEST_P(CudaLayerProfileRanks, FlightsOfPartsFollowEachOther) {
  const LayerKind kind{
      .name = "parts", .backend = All2AllBackend::kHighThroughput, .kernel = {.combine_parts = 2}};
  run([&](Group& group) {
    RankLayer layer(kind, group);
    const Tensor hidden = random_tensor({130, kHidden}, DType::kBF16, 9);
    layer.forward(hidden);
    Profile profile(Profile::Keep::kIntervals);
    layer.forward(hidden, DType::kBF16, &profile);
    std::vector<Profile::Interval> flights;
    for (const Profile::Interval& interval : profile.intervals()) {
      if (interval.track == Profile::Track::kInFlight && interval.name == "combine") {
        flights.push_back(interval);
      }
    }
    ASSERT_EQ(flights.size(), 2u);
    EXPECT_LE(flights[0].end, flights[1].begin);
    group.barrier("end");
  });
}

TEST_P(CudaLayerProfileRanks, IntervalsOfMicrobatchesLieWithinTheCall) {
  using Track = Profile::Track;
  const LayerKind kind{.name = "high throughput",
                       .backend = All2AllBackend::kHighThroughput,
                       .kernel = {.microbatches = 2}};
  run([&](Group& group) {
    RankLayer layer(kind, group);
    const Tensor hidden = random_tensor({13, kHidden}, DType::kBF16, 9);
    const Tensor expected = layer.forward(hidden);
    layer.forward(hidden);
    const Tensor in = layer.place.take(hidden);
    const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
    Profile profile(Profile::Keep::kIntervals);
    layer.place.stream.synchronize();
    group.barrier("profiled call");
    const auto begin = Profile::Clock::now();
    layer.layer->forward(in, out, layer.context(&profile));
    layer.place.stream.synchronize();
    const auto end = Profile::Clock::now();
    expect_same_bits(layer.place.bring(out), expected);
    std::map<Track, int> tracks;
    std::map<std::string, int> flights;
    // The times of a GPU's events on the host's clock are only as exact as that of the event which
    // they are measured from.
    constexpr std::chrono::milliseconds kExact{1};
    for (const Profile::Interval& interval : profile.intervals()) {
      ++tracks[interval.track];
      flights[interval.name] += interval.track == Track::kInFlight;
      EXPECT_LE(interval.begin, interval.end) << interval.name;
      EXPECT_GE(interval.begin, begin - kExact) << interval.name;
      EXPECT_LE(interval.end, end + kExact) << interval.name;
    }
    for (const Track track : {Track::kHost, Track::kCompute, Track::kTransfers, Track::kShared}) {
      EXPECT_GT(tracks[track], 0) << static_cast<int>(track);
    }
    EXPECT_EQ(flights["dispatch"], 2);
    EXPECT_EQ(flights["combine"], 2);
    group.barrier("end");
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaLayerProfileRanks, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
