// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/parallel_config.h"

#include <gtest/gtest.h>

#include "tests/layer/tensors.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

struct Flattening {
  int tp, tp_rank, dp, dp_rank;  // as the model was started
  bool ep;
  int expected[6];  // tp size, rank | dp size, rank | ep size, rank
};

// The six worked examples of vLLM's FusedMoEParallelConfig, every device of each.
constexpr Flattening kFlattenings[] = {
    {2, 0, 1, 0, false, {2, 0, 1, 0, 1, 0}}, {2, 1, 1, 0, false, {2, 1, 1, 0, 1, 0}},
    {1, 0, 2, 0, false, {2, 0, 2, 0, 1, 0}}, {1, 0, 2, 1, false, {2, 1, 2, 1, 1, 0}},
    {2, 0, 2, 0, false, {4, 0, 2, 0, 1, 0}}, {2, 1, 2, 0, false, {4, 1, 2, 0, 1, 0}},
    {2, 0, 2, 1, false, {4, 2, 2, 1, 1, 0}}, {2, 1, 2, 1, false, {4, 3, 2, 1, 1, 0}},
    {2, 0, 1, 0, true, {1, 0, 1, 0, 2, 0}},  {2, 1, 1, 0, true, {1, 0, 1, 0, 2, 1}},
    {1, 0, 2, 0, true, {1, 0, 2, 0, 2, 0}},  {1, 0, 2, 1, true, {1, 0, 2, 1, 2, 1}},
    {2, 0, 2, 0, true, {1, 0, 2, 0, 4, 0}},  {2, 1, 2, 0, true, {1, 0, 2, 0, 4, 1}},
    {2, 0, 2, 1, true, {1, 0, 2, 1, 4, 2}},  {2, 1, 2, 1, true, {1, 0, 2, 1, 4, 3}},
};

TEST(ParallelConfig, FlattensTheWorkedExamples) {
  for (const Flattening& f : kFlattenings) {
    const auto c = ParallelConfig::make(f.tp, f.tp_rank, f.dp, f.dp_rank, f.ep);
    SCOPED_TRACE(::testing::Message() << "tp " << f.tp << "," << f.tp_rank << " dp " << f.dp << ","
                                      << f.dp_rank << " ep " << f.ep);
    EXPECT_EQ(c.tp_size, f.expected[0]);
    EXPECT_EQ(c.tp_rank, f.expected[1]);
    EXPECT_EQ(c.dp_size, f.expected[2]);
    EXPECT_EQ(c.dp_rank, f.expected[3]);
    EXPECT_EQ(c.ep_size, f.expected[4]);
    EXPECT_EQ(c.ep_rank, f.expected[5]);
    EXPECT_EQ(c.use_ep, f.ep);
  }
}

TEST(ParallelConfig, OneDeviceHasNoExpertParallelism) {
  EXPECT_EQ(ParallelConfig::make(1, 0, 1, 0, true), ParallelConfig());
}

TEST(ParallelConfig, BackendsHaveNames) {
  for (const auto backend : {All2AllBackend::kNone, All2AllBackend::kAllGatherReduceScatter,
                             All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
    EXPECT_EQ(all2all_backend_from_name(name(backend)), backend);
  }
  EXPECT_EQ(all2all_backend_from_name("pplx"), std::nullopt);
}

TEST(ParallelConfig, RefusesRanksOutsideTheirSize) {
  expect_mentions(message_of<Error>([] { ParallelConfig::make(0, 0, 1, 0, false); }),
                  {"tp_size", "0", "1"});
  expect_mentions(message_of<Error>([] { ParallelConfig::make(1, 0, -2, 0, false); }),
                  {"dp_size", "-2"});
  expect_mentions(message_of<Error>([] { ParallelConfig::make(2, 2, 1, 0, false); }),
                  {"tp_rank is 2", "1"});
  expect_mentions(message_of<Error>([] { ParallelConfig::make(2, 0, 3, -1, false); }),
                  {"dp_rank is -1"});
}

TEST(ExpertRange, FirstRanksOwnOneMore) {
  const int64_t begins[] = {0, 3, 6, 8, 10};
  for (int rank = 0; rank < 4; ++rank) {
    const ExpertRange range = expert_range(10, 4, rank);
    EXPECT_EQ(range.begin, begins[rank]);
    EXPECT_EQ(range.end, begins[rank + 1]);
  }
  EXPECT_EQ(expert_range(2, 3, 2).size(), 0);
  expect_mentions(message_of<Error>([] { expert_range(8, 2, 2); }), {"ep_rank is 2", "ep_size 2"});
}

TEST(ExpertRange, MapHasLocalIndices) {
  EXPECT_EQ(testing::ints(make_expert_map(5, {1, 3})), (std::vector<int32_t>{-1, 0, 1, -1, -1}));
  expect_mentions(message_of<Error>([] { make_expert_map(5, {3, 6}); }), {"[3, 6)", "5"});
  expect_mentions(message_of<Error>([] { ParallelConfig::make(65536, 0, 65536, 0, true); }),
                  {"dp_size 65536 times tp_size 65536"});
}

MoeConfig valid() {
  MoeConfig config;
  config.num_experts = 10;
  config.experts_per_token = 2;
  config.hidden = 64;
  config.intermediate = 96;
  return config;
}

TEST(MoeConfig, FillsLocalExperts) {
  MoeConfig config = valid();
  config.validate();
  EXPECT_EQ(config.num_local_experts, 10);
  config = valid();
  config.parallel = ParallelConfig::make(1, 0, 4, 1, true);
  config.validate();
  EXPECT_EQ(config.num_local_experts, 3);
  EXPECT_EQ(config.tp_shard_intermediate(), 96);
  config = valid();
  config.parallel = ParallelConfig::make(4, 1, 1, 0, false);
  config.validate();
  EXPECT_EQ(config.num_local_experts, 10);
  EXPECT_EQ(config.tp_shard_intermediate(), 24);
}

TEST(MoeConfig, NamesWhatItRefuses) {
  const auto message = [](auto&& change) {
    MoeConfig config = valid();
    change(config);
    return message_of<Error>([&] { config.validate(); });
  };
  expect_mentions(message([](MoeConfig& c) { c.num_experts = 0; }), {"num_experts is 0"});
  expect_mentions(message([](MoeConfig& c) { c.experts_per_token = 11; }),
                  {"experts_per_token is 11", "10"});
  expect_mentions(message([](MoeConfig& c) { c.experts_per_token = 0; }),
                  {"experts_per_token is 0"});
  expect_mentions(message([](MoeConfig& c) { c.hidden = -1; }), {"hidden is -1"});
  expect_mentions(message([](MoeConfig& c) { c.intermediate = 0; }), {"intermediate is 0"});
  expect_mentions(message([](MoeConfig& c) { c.max_num_tokens = 0; }), {"max_num_tokens is 0"});
  expect_mentions(message([](MoeConfig& c) { c.in_dtype = DType::kI8; }), {"in_dtype is i8"});
  expect_mentions(message([](MoeConfig& c) { c.num_local_experts = 11; }),
                  {"num_local_experts is 11", "10"});
  expect_mentions(message([](MoeConfig& c) { c.parallel.ep_size = 11; }), {"ep_size is 11", "10"});
  expect_mentions(message([](MoeConfig& c) { c.parallel.tp_size = 5; }),
                  {"intermediate", "96", "multiple of 5"});
}

}  // namespace
}  // namespace moebius
