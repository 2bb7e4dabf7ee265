// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/error_text.h"
#include "tests/plan/problems.h"

namespace moebius::plan {
namespace {

using testing::expect_mentions;
using testing::message_of;

constexpr All2AllBackend kBackends[] = {All2AllBackend::kAllGatherReduceScatter,
                                        All2AllBackend::kHighThroughput,
                                        All2AllBackend::kLowLatency};

// What the formulas have without the measured corrections.
Machine plain_h200() {
  Machine machine = find_machine("h200");
  machine.experts_are_measured = false;
  return machine;
}

// Computed by hand with the formulas of docs/plan.md, for one GPU with all experts.
TEST(Forecast, OneGpuIsProductsWeightsAndMoves) {
  Deployment d = preset_deployment("qwen3-30b-a3b", "none", 1);
  d.tokens = 4096;
  const Machine m = plain_h200();
  const Forecast f = forecast(All2AllBackend::kNone, d, m);
  const double rows = 4096 * 8;
  const double products = rows * 2 * 2048 * 3 * 768 / m.bf16_tflops.value * 1e-6;
  const double weights = 128 * 3.0 * 768 * 2048 * 2 / m.weight_gb_per_s.value * 1e-3;
  ASSERT_GT(products, weights);  // 256 rows per expert are whole tiles
  // GEMM1 activates, and fetches rows in 0.6 of the time that gathering them would take.
  const double bytes = rows * (0.6 * 2 * 4096 + 4096) + 4096.0 * 4096;
  EXPECT_NEAR(f.experts, m.experts_us.value + products + bytes / m.copy_gb_per_s.value * 1e-3,
              1e-6);
  EXPECT_NEAR(f.router, m.router_us.value + 4096 * 2.0 * 2048 * 128 / m.router_tflops.value * 1e-6,
              1e-6);
  EXPECT_NEAR(f.call, f.router + f.prepare + f.experts + f.finalize + f.shared, 1e-6);
  EXPECT_EQ(f.copies, 0);
  EXPECT_EQ(f.traffic.intra_out() + f.traffic.inter_out(), 0);
}

// Formats decide on the GEMM, as in src/experts/cuda/gemm/gemm_plan.cc.
TEST(Forecast, SchemesHaveTheRateOfTheirGemm) {
  constexpr int64_t kTokens = 32768;  // 2048 rows per expert, 16 tiles
  const Machine m = plain_h200();
  const auto experts = [&](const char* quant, DType dtype, const Machine& machine) {
    Deployment d = preset_deployment("qwen3-30b-a3b", quant, 1);
    d.layer.dtype = dtype;
    d.tokens = kTokens;
    return forecast(All2AllBackend::kNone, d, machine).experts;
  };
  struct Rate {
    const char* quant;
    DType dtype;
    Given Machine::*rate;
  };
  for (const Rate& r : {Rate{"none", DType::kBF16, &Machine::bf16_tflops},
                        Rate{"none", DType::kF16, &Machine::bf16_tflops},
                        Rate{"none", DType::kF32, &Machine::f32_tflops},
                        Rate{"fp8_w8a8", DType::kBF16, &Machine::fp8_tflops},
                        Rate{"fp8_w8a8", DType::kF16, &Machine::fp8_tflops},
                        Rate{"fp8_w8a8_channel", DType::kBF16, &Machine::fp8_tflops},
                        Rate{"int8_w8a8", DType::kBF16, &Machine::int8_tflops},
                        Rate{"int8_w8a16", DType::kBF16, &Machine::decoded_tflops},
                        Rate{"int8_w8a16", DType::kF16, &Machine::decoded_tflops},
                        Rate{"int4_w4a16", DType::kBF16, &Machine::decoded_tflops},
                        Rate{"mxfp4_w4a16", DType::kBF16, &Machine::decoded_tflops},
                        Rate{"nvfp4", DType::kBF16, &Machine::decoded_tflops}}) {
    Machine slower = m;
    (slower.*r.rate).value /= 2;
    const double products = kTokens * 8.0 * 2 * 2048 * 3 * 768 / (m.*r.rate).value * 1e-6;
    EXPECT_NEAR(experts(r.quant, r.dtype, slower) - experts(r.quant, r.dtype, m), products,
                1e-6 * products)
        << r.quant << " " << name(r.dtype);
  }
}

// Fewer rows than pay for decoding cost their whole tiles, and the decoding in registers.
TEST(Forecast, FewRowsAreMultipliedByCodes) {
  const Machine m = plain_h200();
  Machine slower = m;
  slower.registers_tflops.value /= 2;
  for (const auto& [tokens, rows] : {std::pair(960, 64 + 135), std::pair(128, 16 + 135)}) {
    Deployment d = preset_deployment("qwen3-30b-a3b", "int4_w4a16", 1);
    d.tokens = tokens;  // an expert has 60 or 8 rows
    const Forecast f = forecast(All2AllBackend::kNone, d, m);
    const double products = f.touched * rows * 2 * 2048 * 3 * 768 / m.registers_tflops.value * 1e-6;
    EXPECT_NEAR(forecast(All2AllBackend::kNone, d, slower).experts - f.experts, products,
                1e-6 * products);
  }
}

// Measured with 32 experts of DeepSeek-V3 on one H200; see docs/performance/gpu_experts.md.
TEST(Forecast, WeightsInCodesTakeWhatTheyWereMeasuredToTake) {
  const Machine m = find_machine("h200");
  struct Measured {
    const char* quant;
    int64_t rows;  // of an expert
    double us;
  };
  for (const Measured& c : {Measured{"int4_w4a16", 1024, 4300}, Measured{"int8_w8a16", 1024, 4430},
                            Measured{"mxfp4_w4a16", 1024, 4140}, Measured{"nvfp4", 1024, 4140}}) {
    Deployment d = preset_deployment("deepseek-v3", c.quant, 8);
    d.layer.routing.num_groups = d.layer.routing.topk_groups = 1;
    d.tokens = c.rows * 4;
    const double us = forecast(All2AllBackend::kHighThroughput, d, m).experts;
    EXPECT_NEAR(us / c.us, 1, 0.1) << c.quant << " " << c.rows << ": " << us;
  }
}

TEST(Forecast, SweepsEndWhereShardsWouldCutBlocks) {
  Deployment d = preset_deployment("deepseek-v3", "none", 8);
  d.shards_experts = true;
  const Machine m = find_machine("h200");
  EXPECT_EQ(sweep_ranks(d, m, 64).back().deployment.ranks, 64);
  d.formats = find_formats("fp8", d.layer);  // 2048 columns in blocks of 128
  EXPECT_EQ(sweep_ranks(d, m, 64).back().deployment.ranks, 16);
  d.ranks = 32;
  EXPECT_THROW(expect_valid(d), InvalidArgument);
}

// They do not depend on how a backend cuts the call; low latency takes it in three pieces.
TEST(Forecast, RowsAndTouchedExpertsAreOfOneRankAndTheWholeCall) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 64);
  d.layer.routing.skew = 1;
  d.tokens = 600;
  const RoutingModel model(d.layer.routing);
  const Copies copies = expected_copies(d, model, 600);
  int fullest = 0;
  for (int r = 1; r < 64; ++r) {
    fullest = copies.received_selections(r) > copies.received_selections(fullest) ? r : fullest;
  }
  for (const All2AllBackend backend : kBackends) {
    const Forecast f = forecast(backend, d, find_machine("h200"));
    EXPECT_NEAR(f.rows, copies.received_selections(fullest), 1e-6);
    EXPECT_NEAR(f.touched, expected_touched_experts(d, model, fullest, 600), 1e-9);
  }
}

// Every rank has all tokens.  Whole experts and parts of all experts take equally many products and
// weights.
TEST(Forecast, WithoutABackendRanksComputeOnAllTokensAndSum) {
  Deployment d = preset_deployment("qwen3-30b-a3b", "none", 4);
  d.tp = 4;
  d.tokens = 256;
  const Machine m = plain_h200();
  const Forecast whole = forecast(All2AllBackend::kNone, d, m);
  EXPECT_NEAR(whole.rows, 256 * 8 / 4, 1e-6);
  EXPECT_LE(whole.touched, 32);
  d.shards_experts = true;
  const Forecast parts = forecast(All2AllBackend::kNone, d, m);
  EXPECT_NEAR(parts.rows, 256 * 8, 1e-6);
  EXPECT_NEAR(parts.touched, 4 * whole.touched, 1e-6);
  EXPECT_EQ(parts.buffers.weights, whole.buffers.weights);  // in bf16
  // Both read the same bytes of weights, but parts move more and narrower rows.
  const double weights = whole.touched * 3.0 * 768 * 2048 * 2 / m.weight_gb_per_s.value * 1e-3;
  // Parts of 192 columns are activated by a kernel of their own.
  const auto moves = [&](double rows, double activation) {
    return (rows * (0.6 * 2 * 4096 + activation + 4096) + 256.0 * 4096) / m.copy_gb_per_s.value *
           1e-3;
  };
  EXPECT_NEAR(whole.experts, m.experts_us.value + weights + moves(512, 0), 1e-6);
  EXPECT_NEAR(parts.experts, m.experts_us.value + weights + moves(2048, 3 * 192 * 2), 1e-6);
  // Three quarters of the rows leave a rank to be summed, and as many sums arrive.
  const double bytes = 2 * 0.75 * 256 * 4096;
  EXPECT_EQ(whole.traffic.intra_out(), bytes);
  EXPECT_EQ(parts.traffic.intra_out(), bytes);
  const double travel = bytes / m.link_gb_per_s.value * 1e-3 +
                        2 * (m.link_us.value + 3 * m.peer_us.value + m.exchange_us.value);
  EXPECT_NEAR(whole.line.travelled, travel, 1e-6);
  EXPECT_NEAR(whole.line.waited, travel, 1e-6);
  EXPECT_NEAR(whole.finalize, travel + 5 * 64 * 4096.0 / m.copy_gb_per_s.value * 1e-3, 1e-6);
  EXPECT_NEAR(whole.call, whole.router + whole.experts + whole.finalize, 1e-6);
}

// Each rank brings its slice as if it had no other tokens, and slices of the output are gathered.
TEST(Forecast, RanksOfATpGroupBringSlices) {
  const Machine m = find_machine("h200");
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  d.tokens = 600;
  for (const All2AllBackend backend : kBackends) {
    const Forecast alone = forecast(backend, d, m);
    Deployment sliced = d;
    sliced.tp = 4;
    sliced.tokens = 2400;
    const Forecast f = forecast(backend, sliced, m);
    const double row = 2 * 7168;
    const double gathered = 3 * 600 * row;
    const double travel = gathered / m.link_gb_per_s.value * 1e-3 + m.link_us.value +
                          3 * m.peer_us.value + m.exchange_us.value;
    EXPECT_NEAR(f.call - alone.call, travel, 1e-6) << name(backend);
    EXPECT_NEAR(f.traffic.intra_out() - alone.traffic.intra_out(), gathered, 1e-3) << name(backend);
    EXPECT_EQ(f.buffers.total(58), alone.buffers.total(58));
    EXPECT_EQ(f.pieces, alone.pieces);
    EXPECT_NEAR(f.copies, alone.copies, 1e-9);
  }
}

// The first ranks of a group have one token more than the others.  No rank computes for tokens that
// do not exist.
TEST(Forecast, UnevenSlicesAreNoMoreTokens) {
  const Machine m = find_machine("h200");
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  const auto expect_rows = [&](double tokens) {
    for (const All2AllBackend backend : candidates(d)) {
      const Forecast f = forecast(backend, d, m);
      EXPECT_NEAR(f.rows, tokens * 8 / 8, 1e-9) << name(backend);
      EXPECT_NEAR(f.touched, 32 * (1 - std::pow(1 - 8.0 / 256, tokens)), 1e-9) << name(backend);
    }
  };
  d.tp = 8;
  expect_rows(1);
  d.tokens = 13;
  expect_rows(13);
  const Forecast gathered = forecast(All2AllBackend::kAllGatherReduceScatter, d, m);
  d.tokens = 16;  // the longest slice has two tokens here, too
  EXPECT_LT(gathered.experts, forecast(All2AllBackend::kAllGatherReduceScatter, d, m).experts);
  d.tp = 4;
  d.tokens = 701;
  expect_rows(2 * 701);
}

TEST(Forecast, ShardedExpertsTakeEveryTokenToEveryRank) {
  Deployment d = preset_deployment("qwen3-30b-a3b", "none", 4);
  d.tokens = 100;
  d.shards_experts = true;
  const auto backends = candidates(d);
  ASSERT_EQ(backends, std::vector{All2AllBackend::kAllGatherReduceScatter});
  const Forecast f = forecast(backends[0], d, find_machine("h200"));
  EXPECT_NEAR(f.rows, 4 * 100 * 8, 1e-6);
  EXPECT_EQ(f.copies, 3);
  d.tp = 4;
  EXPECT_EQ(candidates(d),
            (std::vector{All2AllBackend::kNone, All2AllBackend::kAllGatherReduceScatter}));
  d.shards_experts = false;
  EXPECT_EQ(candidates(d).size(), 4u);
  d.tp = 2;
  EXPECT_EQ(candidates(d).size(), 3u);
}

TEST(Forecast, RefusesRanksThatDoNotDivide) {
  const auto refused = [](int ranks, int tp, bool shards, int64_t redundant, const char* part) {
    Deployment d = preset_deployment("qwen3-30b-a3b", "none", ranks);  // I = 768
    d.tp = tp;
    d.shards_experts = shards;
    d.redundant_experts = redundant;
    expect_mentions(message_of([&] { expect_valid(d); }), part);
  };
  refused(6, 4, false, 0, "ranks (to be in groups of tp) is 6");
  refused(5, 1, true, 0, "intermediate (to be sharded over ranks) is 768");
  refused(4, 1, true, 1, "redundant experts (of sharded experts) is 1");
  Deployment d = preset_deployment("qwen3-30b-a3b", "none", 256);  // more ranks than experts
  d.shards_experts = true;
  EXPECT_NO_THROW(expect_valid(d));
  EXPECT_EQ(sweep_ranks(d, find_machine("h200"), 2048).size(), 8u);  // 768 / 256 is odd
}

TEST(Forecast, RefusesTokensWhoseBytesCannotBeCounted) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 2048);
  d.redundant_experts = 2048 - 256;
  d.tokens = 16384;
  d.layers = 58;
  EXPECT_NO_THROW(expect_valid(d));
  EXPECT_GT(forecast(All2AllBackend::kAllGatherReduceScatter, d, find_machine("h200"))
                .buffers.total(d.layers),
            0);
  d.tokens = int64_t{1} << 31;
  expect_mentions(message_of([&] { expect_valid(d); }), "2147483648 tokens on each of 2048 ranks");
}

TEST(Forecast, FewTokensReadTheWeightsOfTouchedExperts) {
  Deployment d = preset_deployment("qwen3-30b-a3b", "none", 1);
  const Machine m = plain_h200();
  const Forecast f = forecast(All2AllBackend::kNone, d, m);
  EXPECT_NEAR(f.touched, 8, 1e-9);
  EXPECT_NEAR(f.experts - m.experts_us.value, 8 * 3.0 * 768 * 2048 * 2 / 3900e3, 0.1);
}

TEST(Forecast, MoreTokensNeverTakeLess) {
  for (const char* machine : {"h200", "cpu"}) {
    const Machine m = find_machine(machine);
    for (const int ranks : {2, 8, 32}) {
      for (const All2AllBackend backend : kBackends) {
        for (const char* quant : {"fp8", "int4"}) {
          Deployment d = preset_deployment("deepseek-v3", quant, ranks);
          d.device = m.type == DeviceType::kCuda ? Device::cuda(0) : Device::cpu();
          double before = 0;
          for (const int64_t tokens : {1, 7, 64, 256, 257, 1000, 4096}) {
            d.tokens = tokens;
            const Forecast f = forecast(backend, d, m);
            EXPECT_TRUE(std::isfinite(f.call));
            EXPECT_GE(f.call, before)
                << machine << " " << name(backend) << " " << quant << " " << tokens;
            before = f.call;
          }
        }
      }
    }
  }
}

TEST(Forecast, FasterLinksNeverTakeMore) {
  Machine m = find_machine("h200");
  Deployment d = preset_deployment("deepseek-v3", "fp8", 16);
  d.tokens = 1024;
  for (const All2AllBackend backend : kBackends) {
    double before = std::numeric_limits<double>::infinity();
    for (const double gb_per_s : {1.0, 10.0, 50.0, 300.0}) {
      m.node_gb_per_s.value = gb_per_s;
      const double call = forecast(backend, d, m).call;
      EXPECT_LT(call, before);
      before = call;
    }
  }
}

TEST(Forecast, LowLatencyIsCutIntoPieces) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  const Machine m = find_machine("h200");
  const auto line = [&](int64_t tokens) {
    d.tokens = tokens;
    return forecast(All2AllBackend::kLowLatency, d, m);
  };
  const Forecast one = line(256);
  const Forecast more = line(3 * 256 + 10);
  EXPECT_EQ(one.pieces, 1);
  EXPECT_EQ(more.pieces, 4);
  EXPECT_NEAR(more.line.total, 3 * one.line.total + line(10).line.total, 1e-6);
  EXPECT_NEAR(more.traffic.dispatch.intra_out,
              3 * one.traffic.dispatch.intra_out + line(10).traffic.dispatch.intra_out, 1e-3);
}

TEST(Forecast, MicrobatchesHideWhatTravelsAndAreFewWithFewTokens) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  const Machine m = find_machine("h200");
  d.tokens = 8192;
  d.microbatches = 2;
  const Forecast two = forecast(All2AllBackend::kHighThroughput, d, m);
  EXPECT_EQ(two.microbatches, 2);
  EXPECT_GT(two.line.hidden_share(), 0.5);
  d.microbatches = 1;
  EXPECT_GT(forecast(All2AllBackend::kHighThroughput, d, m).call, two.call);
  d.microbatches = 4;
  d.device = Device::cpu();
  d.tokens = 100;  // a micro-batch has at least 32
  EXPECT_EQ(forecast(All2AllBackend::kHighThroughput, d, m).microbatches, 3);
  d.tokens = 20;
  EXPECT_EQ(forecast(All2AllBackend::kHighThroughput, d, m).microbatches, 1);
}

TEST(Forecast, WhatDoesNotFitIsNotChosen) {
  Deployment d = preset_deployment("deepseek-v3", "none", 8);
  d.layers = 58;
  const Machine m = find_machine("h200");
  std::vector<Forecast> all;
  for (const All2AllBackend backend : kBackends) {
    all.push_back(forecast(backend, d, m));
    EXPECT_FALSE(all.back().fits) << name(backend);  // 1.31 TB of experts in bf16
  }
  EXPECT_EQ(fastest(all), nullptr);
  d.layers = 1;
  d.formats = find_formats("fp8_w8a8_channel", d.layer);
  const Forecast fits = forecast(All2AllBackend::kLowLatency, d, m);
  EXPECT_TRUE(fits.support.ok) << fits.support.reason;
  EXPECT_TRUE(fits.works());
}

TEST(Forecast, SumsPerRankAreFewerBytesOnOneNodeAndRefusedOnTwo) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  const Machine m = find_machine("h200");
  const Forecast selections = forecast(All2AllBackend::kLowLatency, d, m);
  d.low_latency_sum = LowLatencySum::kRanks;
  const Forecast ranks = forecast(All2AllBackend::kLowLatency, d, m);
  EXPECT_TRUE(ranks.works()) << ranks.support.reason;
  EXPECT_LT(ranks.traffic.combine.intra_out, 0.9 * selections.traffic.combine.intra_out);
  EXPECT_LT(ranks.finalize, selections.finalize);
  d.ranks_per_node = 4;
  const Forecast refused = forecast(All2AllBackend::kLowLatency, d, m);
  expect_mentions(refused.support.reason, "2 nodes");
  EXPECT_FALSE(refused.works());
}

TEST(Forecast, SweepsReach2048RanksAndTheCrossoverIsOne) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 8);
  const Machine m = find_machine("h200");
  const auto rows = sweep_ranks(d, m, 2048);
  ASSERT_EQ(rows.size(), 11u);
  EXPECT_EQ(rows.back().deployment.ranks, 2048);
  EXPECT_EQ(rows.back().deployment.redundant_experts, 1792);
  for (const SweepRow& row : rows) {
    for (const Forecast& f : row.forecasts) {
      EXPECT_TRUE(std::isfinite(f.call) && f.call > 0);
      EXPECT_GT(f.buffers.total(58), 0);
    }
  }
  const auto at = crossover_tokens(d, m, All2AllBackend::kLowLatency,
                                   All2AllBackend::kHighThroughput, 1, 16384);
  ASSERT_TRUE(at.has_value());
  const auto faster = [&](int64_t tokens) {
    d.tokens = tokens;
    return forecast(All2AllBackend::kHighThroughput, d, m).call <
           forecast(All2AllBackend::kLowLatency, d, m).call;
  };
  EXPECT_TRUE(faster(*at));
  EXPECT_FALSE(*at > 1 && faster(*at - 1));
  Machine slow = m;
  slow.ll_dispatch_us.value = 1e6;
  EXPECT_EQ(crossover_tokens(d, slow, All2AllBackend::kLowLatency, All2AllBackend::kHighThroughput,
                             1, 16384),
            1);
}

}  // namespace
}  // namespace moebius::plan
