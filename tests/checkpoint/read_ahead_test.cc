// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_ahead.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "moebius/checkpoint.h"
#include "tests/by_name.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"

namespace moebius::testing {
namespace {

using checkpoint::ReadAhead;
using Order = std::vector<int64_t>;

TEST(ReadAhead, StaysAWindowAheadOfTheReader) {
  Order announced;
  ReadAhead ahead(
      {10, 10, 10, 100, 10}, [&](int64_t i) { announced.push_back(i); }, 25);
  EXPECT_EQ(announced, Order{});
  ahead.begin(0);  // what begins before byte 25
  EXPECT_EQ(announced, (Order{0, 1, 2}));
  ahead.begin(0);
  EXPECT_EQ(announced, (Order{0, 1, 2}));
  ahead.begin(1);
  EXPECT_EQ(announced, (Order{0, 1, 2, 3}));
  ahead.begin(2);
  EXPECT_EQ(announced, (Order{0, 1, 2, 3}));
  ahead.finish();
  EXPECT_EQ(announced, (Order{0, 1, 2, 3, 4}));
  ahead.finish();
  EXPECT_EQ(announced.size(), 5u);
}

TEST(ReadAhead, AnnouncesThePartItselfWhateverItsSize) {
  Order announced;
  ReadAhead ahead(
      {0, 1000, 0, 1}, [&](int64_t i) { announced.push_back(i); }, 0);
  ahead.begin(2);  // another thread has taken parts 0 and 1
  EXPECT_EQ(announced, (Order{0, 1, 2}));
}

// A disk that takes a while for each request and serves one reader's faults one after the other,
// but announced parts meanwhile.  The test counts time in ticks of its own.
TEST(ReadAhead, HidesTheLatencyOfASlowDisk) {
  constexpr int64_t kParts = 50;
  constexpr int64_t kLatency = 8;  // ticks from request to data; copying a part takes one
  int64_t now = 0;
  std::vector<int64_t> requested(kParts, -1);
  const auto read_all = [&](int64_t window) {
    now = 0;
    requested.assign(kParts, -1);
    ReadAhead ahead(
        Order(kParts, 100), [&](int64_t i) { requested[static_cast<size_t>(i)] = now; }, window);
    for (int64_t i = 0; i < kParts; ++i) {
      ahead.begin(i);
      now = std::max(now, requested[static_cast<size_t>(i)] + kLatency) + 1;
    }
    return now;
  };
  EXPECT_EQ(read_all(/*window=*/0), kParts * (kLatency + 1));
  EXPECT_EQ(read_all(/*window=*/1000), kLatency + kParts);
}

TEST(ReadAhead, AnnouncesEachPartOnceFromManyThreads) {
  constexpr int64_t kParts = 1000;
  std::vector<int> counts(kParts, 0);
  ReadAhead ahead(
      Order(kParts, 1), [&](int64_t i) { ++counts[static_cast<size_t>(i)]; }, 10);
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = next++; i < kParts; i = next++) {
        ahead.begin(i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ahead.finish();
  EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), kParts);
}

// The bytes of all tensors of the block of a layer.
int64_t block_bytes(const Checkpoint& checkpoint, int64_t layer) {
  const std::string prefix = checkpoint.block_prefix(layer) + ".";
  int64_t bytes = 0;
  for (const std::string& name : checkpoint.tensors().names()) {
    const SafetensorsEntry& entry = checkpoint.tensors().entry(name);
    bytes += name.starts_with(prefix) ? static_cast<int64_t>(entry.end - entry.begin) : 0;
  }
  return bytes;
}

// Formats and families of which a load reads every tensor of the block, and no other.
bool reads_the_block(const std::string& model) {
  for (const char* family : {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    for (const char* quant : {"", "_fp8", "_int8", "_int4", "_int4_asym", "_mxfp4", "_nvfp4"}) {
      if (model == std::string(family) + quant) {
        return true;
      }
    }
  }
  return false;
}

class BytesRead : public ::testing::TestWithParam<SmallModel> {};

TEST_P(BytesRead, AreThoseOfTheLayer) {
  const TempDir dir;
  checkpoint::write_model(GetParam().config, "x", 1, dir.path(), int64_t{1} << 40);
  const Checkpoint checkpoint(dir.path());
  int64_t expected = 0;
  for (const int64_t layer : checkpoint.info().moe_layers) {
    const MoeLayerWeights weights = checkpoint.load_layer(layer);
    EXPECT_GE(checkpoint.tensors().bytes_read(), expected + weights.experts.w1.nbytes());
    if (reads_the_block(GetParam().name)) {
      expected += block_bytes(checkpoint, layer);
      EXPECT_EQ(checkpoint.tensors().bytes_read(), expected) << layer;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SmallModels, BytesRead, ::testing::ValuesIn(small_models()), by_name);

}  // namespace
}  // namespace moebius::testing
