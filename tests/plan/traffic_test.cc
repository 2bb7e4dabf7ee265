// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares planned bytes with what groups count when the backends move these rows.
#include "plan/traffic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "experts/quantized_rows.h"
#include "layer/rows/token_slices.h"
#include "moebius/all2all.h"
#include "moebius/workspace.h"
#include "tests/plan/problems.h"

namespace moebius::plan {
namespace {

struct Case {
  All2AllBackend backend;
  const char* quant;
  int ranks_per_node;
  LowLatencySum sum = LowLatencySum::kSelections;
};

std::unique_ptr<PrepareFinalize> make(All2AllBackend backend, Group& group, const Deployment& d) {
  const ExpertPlacement placement =
      ExpertPlacement::linear(d.layer.routing.num_experts, group.size());
  switch (backend) {
    case All2AllBackend::kHighThroughput:
      return make_high_throughput(std::make_shared<HighThroughput>(group, placement));
    case All2AllBackend::kLowLatency:
      return make_low_latency(
          std::make_shared<LowLatency>(group, placement, low_latency_options(d)));
    default:
      return make_allgather_reducescatter(group);
  }
}

QuantConfig quant_of(const Formats& formats) {
  if (!formats.activations) {
    return {};
  }
  switch (const QuantFormat format = formats.activations->format; format) {
    case QuantFormat::kFp8:
      if (formats.quant.a1.scale) {
        return formats.quant;
      }
      return QuantConfig::fp8_w8a8({}, false, false, GroupShape{128, 128});
    case QuantFormat::kInt8:
      return QuantConfig::int8_w8a8({}, true);
    case QuantFormat::kNvfp4:
      return QuantConfig::nvfp4({});
    default:
      return QuantConfig::ocp_mx(format, {});
  }
}

struct Moved {
  int64_t intra_node_bytes;
  int64_t inter_node_bytes;
};

// The bytes that a rank sends in one prepare and finalize.
Moved move_rows(Group& group,
                All2AllBackend backend,
                const Deployment& d,
                const QuantConfig& quant,
                const std::vector<int32_t>& ids) {
  const int64_t topk = d.layer.routing.topk;
  const auto prepare_finalize = make(backend, group, d);
  WorkspacePool pool;
  CallContext context;
  context.workspaces = &pool;
  PrepareInput input;
  input.hidden = Tensor::zeros({d.tokens, d.layer.hidden}, DType::kBF16);
  input.topk_ids = Tensor::empty({d.tokens, topk}, DType::kI32);
  std::copy(ids.begin(), ids.end(), input.topk_ids.data<int32_t>());
  input.topk_weights = Tensor::zeros({d.tokens, topk}, DType::kF32);
  input.num_experts = d.layer.routing.num_experts;
  input.quant = &quant;
  // As experts decide.
  input.defer_input_quant = quant.a1.format && !takes_codes(*quant.a1.format);
  input.may_quantize_transfers = input.defer_input_quant;
  const bool is_batched = backend == All2AllBackend::kLowLatency;
  const auto strategy = make_weight_and_reduce(is_batched ? WeightAndReduceKind::kDelegate
                                                          : WeightAndReduceKind::kNoOp);
  Traffic before;
  for (int call = 0; call < 2; ++call) {  // the first call makes banks
    before = group.traffic();
    const PrepareResult prepared = prepare_finalize->prepare(input, context);
    FinalizeInput done;
    done.output = Tensor::empty(input.hidden.shape(), DType::kBF16);
    done.expert_output = Tensor::zeros(prepared.x.shape(), DType::kBF16);
    done.topk_ids = prepared.topk_ids ? prepared.topk_ids : input.topk_ids;
    done.topk_weights = prepared.topk_weights ? prepared.topk_weights : input.topk_weights;
    done.weight_and_reduce = strategy.get();
    prepare_finalize->finalize(done, context);
  }
  const Traffic after = group.traffic();
  return {after.intra_node_bytes - before.intra_node_bytes,
          after.inter_node_bytes - before.inter_node_bytes};
}

// As find_formats, and "fp8_static": what a file with one static scale of activations has.
Formats formats_of(const std::string& name, const LayerShape& layer) {
  if (name != "fp8_static") {
    return find_formats(name, layer);
  }
  checkpoint::WeightScheme scheme;
  scheme.stored = checkpoint::WeightFormat::kFp8Tensor;
  scheme.format = QuantFormat::kFp8;
  scheme.activations = checkpoint::ActivationScheme::kPerTensor;
  const Formats formats = stored_formats(scheme, /*quantize_activations=*/true);
  *formats.quant.a1.scale.data<float>() = 1.0f;
  return formats;
}

class TrafficOf : public ::testing::TestWithParam<Case> {};

TEST_P(TrafficOf, BackendsIsWhatGroupsCount) {
  const Case& c = GetParam();
  constexpr int kRanks = 4;
  Deployment d = small_deployment(kRanks, c.ranks_per_node, 37);
  d.formats = formats_of(c.quant, d.layer);
  d.low_latency_sum = c.sum;
  const QuantConfig quant = quant_of(d.formats);
  std::vector<std::vector<int32_t>> ids;
  for (int r = 0; r < kRanks; ++r) {
    ids.push_back(random_ids(d.layer.routing, d.tokens, static_cast<uint64_t>(r) + 1));
  }
  const Copies copies = counted_copies(d, ids);
  const std::vector<RankTraffic> expected =
      traffic(c.backend, d, copies, static_cast<double>(d.tokens));
  run_thread_ranks({.num_ranks = kRanks, .ranks_per_node = c.ranks_per_node}, [&](Group& group) {
    const auto r = static_cast<size_t>(group.rank());
    const Moved moved = move_rows(group, c.backend, d, quant, ids[r]);
    EXPECT_EQ(static_cast<double>(moved.intra_node_bytes), expected[r].intra_out()) << "rank " << r;
    EXPECT_EQ(static_cast<double>(moved.inter_node_bytes), expected[r].inter_out()) << "rank " << r;
  });
  double sent = 0;
  double received = 0;
  double relayed = 0;
  for (const RankTraffic& r : expected) {
    for (const Way& way : {r.dispatch, r.combine}) {
      sent += way.intra_out + way.inter_out;
      received += way.intra_in + way.inter_in;
      relayed += way.relay_out - way.relay_in;
    }
  }
  EXPECT_DOUBLE_EQ(sent, received);
  EXPECT_NEAR(relayed, 0, 1e-6);
}

constexpr auto kAg = All2AllBackend::kAllGatherReduceScatter;
constexpr auto kHt = All2AllBackend::kHighThroughput;
constexpr auto kLl = All2AllBackend::kLowLatency;
INSTANTIATE_TEST_SUITE_P(All,
                         TrafficOf,
                         ::testing::Values(Case{kAg, "none", 0},
                                           Case{kAg, "none", 2},
                                           Case{kAg, "fp8", 2},
                                           Case{kAg, "fp8_static", 2},
                                           Case{kAg, "int8", 2},
                                           Case{kAg, "mxfp4", 2},
                                           Case{kAg, "nvfp4", 0},
                                           Case{kHt, "none", 0},
                                           Case{kHt, "none", 2},
                                           Case{kHt, "none", 1},
                                           Case{kHt, "fp8", 0},
                                           Case{kHt, "fp8", 2},
                                           Case{kHt, "int8", 2},
                                           Case{kHt, "fp8", 3},
                                           Case{kHt, "fp8_static", 2},
                                           Case{kHt, "mxfp4", 2},
                                           Case{kHt, "nvfp4", 0},
                                           Case{kLl, "none", 0},
                                           Case{kLl, "none", 0, LowLatencySum::kRanks},
                                           Case{kLl, "fp8", 0, LowLatencySum::kRanks},
                                           Case{kLl, "none", 2},
                                           Case{kLl, "fp8", 0},
                                           Case{kLl, "fp8_static", 0},
                                           Case{kLl, "fp8_static", 2},
                                           Case{kLl, "mxfp4", 0},
                                           Case{kLl, "nvfp4", 2},
                                           Case{kLl, "fp8", 3}),
                         [](const auto& param_info) {
                           return std::string(name(param_info.param.backend)) + "_" +
                                  param_info.param.quant + "_" +
                                  std::to_string(param_info.param.ranks_per_node) +
                                  (param_info.param.sum == LowLatencySum::kRanks ? "_sum_ranks"
                                                                                 : "");
                         });

// MoeLayer moves these bytes after its kernel where ranks hold the same tokens.  Slices of 37
// tokens differ in length.
TEST(Traffic, SumsAndSlicesOfOutputsAreWhatGroupsCount) {
  constexpr int kRanks = 4;
  for (const int ranks_per_node : {0, 1, 2, 3}) {
    for (const auto& [backend, tp] : {std::pair(All2AllBackend::kNone, 4), std::pair(kAg, 4),
                                      std::pair(kHt, 2), std::pair(kLl, 1)}) {
      Deployment d = small_deployment(kRanks, ranks_per_node, 37);
      d.tp = tp;
      const std::vector<RankTraffic> expected = ending_traffic(backend, d);
      run_thread_ranks({.num_ranks = kRanks, .ranks_per_node = ranks_per_node}, [&](Group& group) {
        const Tensor rows = Tensor::zeros({d.tokens, d.layer.hidden}, DType::kBF16);
        const Tensor out = Tensor::empty(rows.shape(), DType::kBF16);
        const Traffic before = group.traffic();
        if (backend == All2AllBackend::kNone) {
          sum_over_ranks(group, rows, out, Stream::cpu(1));
        } else if (tp > 1) {
          gather_slices(group, rows, group.rank() / tp * tp, tp, Stream::cpu(1));
        }
        const Traffic after = group.traffic();
        const RankTraffic& own = expected[static_cast<size_t>(group.rank())];
        EXPECT_EQ(static_cast<double>(after.intra_node_bytes - before.intra_node_bytes),
                  own.intra_out())
            << name(backend) << ", " << ranks_per_node << " per node, rank " << group.rank();
        EXPECT_EQ(static_cast<double>(after.inter_node_bytes - before.inter_node_bytes),
                  own.inter_out())
            << name(backend) << ", " << ranks_per_node << " per node, rank " << group.rank();
      });
    }
  }
}

TEST(Traffic, ExpectationIsWhereCountsLie) {
  const Deployment d = small_deployment(4, 2, 4096);
  const Copies mean = expected_copies(d, RoutingModel(d.layer.routing), 4096);
  std::vector<std::vector<int32_t>> ids;
  for (uint64_t r = 0; r < 4; ++r) {
    ids.push_back(random_ids(d.layer.routing, d.tokens, r));
  }
  for (const All2AllBackend backend : {kAg, kHt, kLl}) {
    const auto expected = traffic(backend, d, mean, 4096);
    const auto counted = traffic(backend, d, counted_copies(d, ids), 4096);
    for (size_t r = 0; r < 4; ++r) {  // 5 deviations of 4096 tokens' copies are below 4 %
      EXPECT_NEAR(expected[r].intra_out() / counted[r].intra_out(), 1, 0.04);
      EXPECT_NEAR(expected[r].inter_out() / counted[r].inter_out(), 1, 0.04);
    }
  }
}

TEST(Traffic, StaysFiniteAndGrowsWithTokensAt2048Ranks) {
  Deployment d = preset_deployment("deepseek-v3", "fp8", 2048);
  d.redundant_experts = 2048 - 256;
  const RoutingModel model(d.layer.routing);
  double before = 0;
  for (const double tokens : {1.0, 4096.0, 1e6}) {
    const Copies copies = expected_copies(d, model, tokens);
    const RankTraffic rank = traffic(kHt, d, copies, tokens)[5];
    const double bytes = rank.intra_out() + rank.inter_out();
    EXPECT_TRUE(std::isfinite(bytes));
    EXPECT_GT(bytes, before);
    before = bytes;
    double received = 0;
    for (int r = 0; r < 2048; ++r) {
      received += copies.received_selections(r);
    }
    EXPECT_NEAR(received / (2048 * 8 * tokens), 1, 1e-9);
  }
}

}  // namespace
}  // namespace moebius::plan
