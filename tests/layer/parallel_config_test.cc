// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/parallel_config.h"

#include <gtest/gtest.h>

#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

struct Flattening {
  int tp, tp_rank, dp, dp_rank;  // that the model was started with
  bool ep;
  int expected[6];  // tp size, rank | dp size, rank | ep size, rank
};

// The six worked examples of vLLM's FusedMoEParallelConfig, with every device of each.
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
  EXPECT_EQ(all2all_backend_from_name("naive"), All2AllBackend::kAllGatherReduceScatter);
  EXPECT_EQ(all2all_backend_from_name("deepep_high_throughput"), All2AllBackend::kHighThroughput);
  EXPECT_EQ(all2all_backend_from_name("deepep_low_latency"), All2AllBackend::kLowLatency);
  EXPECT_EQ(all2all_backend_from_name("deepep"), std::nullopt);
  try {
    all2all_backend_from_name("pplx");
    ADD_FAILURE() << "pplx is taken";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("pplx"), std::string::npos);
  }
}

TEST(ParallelConfig, RefusesRanksOutsideTheirSize) {
  expect_error({"tp_size", "0", "1"}, [] { ParallelConfig::make(0, 0, 1, 0, false); });
  expect_error({"dp_size", "-2"}, [] { ParallelConfig::make(1, 0, -2, 0, false); });
  expect_error({"tp_rank is 2", "1"}, [] { ParallelConfig::make(2, 2, 1, 0, false); });
  expect_error({"dp_rank is -1"}, [] { ParallelConfig::make(2, 0, 3, -1, false); });
}

TEST(ExpertRange, FirstRanksOwnOneMore) {
  const int64_t begins[] = {0, 3, 6, 8, 10};
  for (int rank = 0; rank < 4; ++rank) {
    const ExpertRange range = expert_range(10, 4, rank);
    EXPECT_EQ(range.begin, begins[rank]);
    EXPECT_EQ(range.end, begins[rank + 1]);
  }
  EXPECT_EQ(expert_range(2, 3, 2).size(), 0);
  expect_error({"ep_rank is 2", "ep_size 2"}, [] { expert_range(8, 2, 2); });
}

TEST(ExpertRange, MapHasLocalIndices) {
  EXPECT_EQ(ints(make_expert_map(5, {1, 3})), (std::vector<int32_t>{-1, 0, 1, -1, -1}));
  expect_error({"[3, 6)", "5"}, [] { make_expert_map(5, {3, 6}); });
  expect_error({"dp_size 65536 times tp_size 65536"},
               [] { ParallelConfig::make(65536, 0, 65536, 0, true); });
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
  const auto expect_refusal = [](Parts parts, auto&& change) {
    MoeConfig config = valid();
    change(config);
    expect_error(parts, [&] { config.validate(); });
  };
  expect_refusal({"num_experts is 0"}, [](MoeConfig& c) { c.num_experts = 0; });
  expect_refusal({"experts_per_token is 11", "10"}, [](MoeConfig& c) { c.experts_per_token = 11; });
  expect_refusal({"experts_per_token is 0"}, [](MoeConfig& c) { c.experts_per_token = 0; });
  expect_refusal({"hidden is -1"}, [](MoeConfig& c) { c.hidden = -1; });
  expect_refusal({"intermediate is 0"}, [](MoeConfig& c) { c.intermediate = 0; });
  expect_refusal({"max_num_tokens is 0"}, [](MoeConfig& c) { c.max_num_tokens = 0; });
  expect_refusal({"in_dtype is i8"}, [](MoeConfig& c) { c.in_dtype = DType::kI8; });
  expect_refusal({"num_local_experts is 11", "10"}, [](MoeConfig& c) { c.num_local_experts = 11; });
  expect_refusal({"ep_size is 11", "10"}, [](MoeConfig& c) { c.parallel.ep_size = 11; });
  expect_refusal({"intermediate", "96", "multiple of 5"},
                 [](MoeConfig& c) { c.parallel.tp_size = 5; });
}

}  // namespace
}  // namespace moebius::testing
