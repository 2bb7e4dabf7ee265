// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/prepare_finalize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "moebius/all2all.h"
#include "moebius/group.h"
#include "moebius/quantize.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

QuantConfig fp8(bool per_token, std::optional<GroupShape> block = std::nullopt) {
  return QuantConfig::fp8_w8a8(weight_scales(4), per_token, false, block);
}

struct Problem {
  WorkspacePool pool;
  CallContext context;
  QuantConfig quant;
  PrepareInput input;

  Problem(int64_t num_tokens, int64_t topk, int64_t hidden, DType dtype = DType::kBF16) {
    context.workspaces = &pool;
    input.hidden = random_tensor({num_tokens, hidden}, dtype, 1);
    input.topk_ids = random_ids(num_tokens, topk, 4, 2);
    input.topk_weights = random_tensor({num_tokens, topk}, DType::kF32, 3);
    input.num_experts = 4;
    input.quant = &quant;
  }
};

TEST(PrepareFinalize, PropertiesOfTheSingleRankBackends) {
  const auto standard = make_no_ep();
  const auto batched = make_no_ep_batched(8, 4);
  EXPECT_EQ(standard->name(), "no_ep");
  EXPECT_EQ(batched->name(), "no_ep_batched");
  EXPECT_EQ(standard->traits().activation_format, ActivationFormat::kStandard);
  EXPECT_EQ(batched->traits().activation_format, ActivationFormat::kBatched);
  EXPECT_EQ(standard->traits().max_tokens_per_rank, std::nullopt);
  EXPECT_EQ(batched->traits().max_tokens_per_rank, 8);
  for (const PrepareFinalize* pf : {standard.get(), batched.get()}) {
    EXPECT_EQ(pf->traits().num_dispatchers, 1);
    EXPECT_FALSE(pf->traits().is_async);
    EXPECT_FALSE(pf->traits().is_monolithic);
    EXPECT_TRUE(pf->accepts(WeightAndReduceKind::kDelegate).ok);
    EXPECT_TRUE(pf->accepts(QuantConfig(), false).ok);
    EXPECT_TRUE(pf->accepts(fp8(true), false).ok);
    EXPECT_TRUE(pf->accepts(fp8(true), true).ok);
  }
  EXPECT_FALSE(standard->traits().localizes_ids);
  EXPECT_TRUE(batched->traits().localizes_ids);
  EXPECT_TRUE(standard->accepts(WeightAndReduceKind::kContiguous).ok);
  EXPECT_TRUE(standard->accepts(WeightAndReduceKind::kNoOp).ok);
  EXPECT_FALSE(standard->accepts(WeightAndReduceKind::kNaiveBatched).ok);
  EXPECT_FALSE(batched->accepts(WeightAndReduceKind::kContiguous).ok);
  EXPECT_FALSE(batched->accepts(WeightAndReduceKind::kNoOp).ok);
  EXPECT_TRUE(batched->accepts(WeightAndReduceKind::kNaiveBatched).ok);
}

TEST(PrepareFinalize, AsynchronousHalvesAreRefusedByName) {
  Problem problem(2, 1, 8);
  const auto pf = make_no_ep();
  EXPECT_THROW(pf->prepare_async(problem.input, problem.context), Unsupported);
  expect_error({"no_ep"}, [&] { pf->finalize_async({}, problem.context); });
}

TEST(PrepareFinalize, RefusesBadInput) {
  for (const bool batched : {false, true}) {
    const auto pf = batched ? make_no_ep_batched(8, 4) : make_no_ep();
    const auto expect_refusal = [&](Parts parts, auto&& change) {
      Problem problem(3, 2, 8);
      change(problem);
      expect_error(parts, [&] { pf->prepare(problem.input, problem.context); });
    };
    expect_refusal({"apply_router_weight_on_input", "2", "1"},
                   [](Problem& p) { p.input.apply_router_weight_on_input = true; });
    expect_refusal({"topk_ids", "4", "3"},
                   [](Problem& p) { p.input.topk_ids = random_ids(4, 2, 4, 1); });
    expect_refusal({"topk_weights"}, [](Problem& p) { p.input.topk_weights = {}; });
    expect_refusal({"hidden", "i32"}, [](Problem& p) { p.input.hidden = p.input.topk_ids; });
    expect_refusal({"workspaces"}, [](Problem& p) { p.context.workspaces = nullptr; });
    expect_refusal({"quant"}, [](Problem& p) { p.input.quant = nullptr; });
  }
}

// The backends over ranks with the standard format.
std::vector<std::unique_ptr<PrepareFinalize>> standard_backends(Group& group) {
  std::vector<std::unique_ptr<PrepareFinalize>> backends;
  backends.push_back(make_allgather_reducescatter(group));
  backends.push_back(make_high_throughput(
      std::make_shared<HighThroughput>(group, ExpertPlacement::linear(4, group.size()))));
  return backends;
}

// Row r of every extra tensor belongs to row r of x.
TEST(StandardBackendsOverRanks, CarryExtraTensorsOfTheCaller) {
  run_thread_ranks({.num_ranks = 3}, [](Group& group) {
    for (const auto& pf : standard_backends(group)) {
      SCOPED_TRACE(pf->name());
      Problem problem(group.rank() == 1 ? 0 : 5, 2, 8, DType::kF32);
      const int64_t num_tokens = problem.input.hidden.dim(0);
      const Tensor codes = Tensor::empty({num_tokens, 2}, DType::kI32);
      const Tensor flags = Tensor::empty({num_tokens}, DType::kU8);
      for (int64_t t = 0; t < num_tokens; ++t) {
        problem.input.hidden.data<float>()[8 * t] = static_cast<float>(100 * group.rank() + t);
        codes.data<int32_t>()[2 * t] = group.rank();
        codes.data<int32_t>()[2 * t + 1] = static_cast<int32_t>(t);
        flags.data<uint8_t>()[t] = static_cast<uint8_t>(10 * group.rank() + t);
      }
      problem.input.extras = {codes, flags};
      const PrepareResult rows = pf->prepare(problem.input, problem.context);
      ASSERT_EQ(rows.extras.size(), 2u);
      ASSERT_EQ(rows.extras[0].shape(), Shape({rows.x.dim(0), 2}));
      ASSERT_EQ(rows.extras[1].shape(), Shape({rows.x.dim(0)}));
      for (int64_t r = 0; r < rows.x.dim(0); ++r) {
        const auto* code = rows.extras[0].data<int32_t>() + 2 * r;
        EXPECT_EQ(rows.x.data<float>()[8 * r], static_cast<float>(100 * code[0] + code[1]));
        EXPECT_EQ(rows.extras[1].data<uint8_t>()[r], 10 * code[0] + code[1]);
      }
      problem.input.extras = {Tensor::zeros({num_tokens + 1}, DType::kU8)};
      EXPECT_THROW(pf->prepare(problem.input, problem.context), InvalidArgument);
    }
  });
}

TEST(NoEpBatched, SortsExtraTensorsWithTheRows) {
  const auto pf = make_no_ep_batched(8, 4);
  EXPECT_TRUE(pf->traits().carries_extras.ok);
  for (const bool has_lora : {false, true}) {
    Problem problem(5, 2, 8, DType::kF32);
    const Tensor codes = Tensor::empty({5, 3}, DType::kU8);
    const Tensor tokens = Tensor::empty({5}, DType::kI32);
    for (int32_t t = 0; t < 5; ++t) {
      problem.input.hidden.data<float>()[8 * t] = static_cast<float>(t);
      std::fill_n(codes.data<uint8_t>() + 3 * t, 3, static_cast<uint8_t>(10 + t));
      tokens.data<int32_t>()[t] = 100 + t;
    }
    problem.input.extras = {codes, tokens};
    if (has_lora) {
      problem.input.lora_ids = tokens;
    }
    const PrepareResult rows = pf->prepare(problem.input, problem.context);
    ASSERT_EQ(rows.extras.size(), 2u);
    ASSERT_EQ(rows.extras[0].shape(), Shape({4, 8, 3}));
    ASSERT_EQ(rows.extras[1].shape(), Shape({4, 8}));
    int64_t num_rows = 0;
    for (int64_t e = 0; e < 4; ++e) {
      for (int64_t r = 0; r < rows.expert_num_tokens.data<int32_t>()[e]; ++r, ++num_rows) {
        const int64_t row = 8 * e + r;
        const auto token = static_cast<int32_t>(rows.x.data<float>()[8 * row]);
        EXPECT_EQ(rows.extras[0].data<uint8_t>()[3 * row + 2], 10 + token);
        EXPECT_EQ(rows.extras[1].data<int32_t>()[row], 100 + token);
        if (has_lora) {
          EXPECT_EQ(rows.lora_ids.data<int32_t>()[row], 100 + token);
        }
      }
    }
    EXPECT_GT(num_rows, 0);
  }
}

TEST(LowLatencyBackend, SaysWhyItCarriesNoExtraTensors) {
  run_thread_ranks({.num_ranks = 2}, [](Group& group) {
    Problem problem(3, 2, 8);
    problem.input.extras = {Tensor::zeros({3}, DType::kU8)};
    const LowLatencyOptions options{.max_tokens = 4, .hidden = 8, .topk = 2};
    const auto backend = make_low_latency(
        std::make_shared<LowLatency>(group, ExpertPlacement::linear(4, 2), options));
    const Support carries = backend->traits().carries_extras;
    EXPECT_FALSE(carries.ok);
    try {
      backend->prepare(problem.input, problem.context);
      ADD_FAILURE() << "low latency takes extra tensors";
    } catch (const Unsupported& error) {
      expect_mentions(error.what(), {"low_latency", carries.reason});
    }
  });
}

// Logits travel in their own type.
TEST(MonolithicBackend, GathersLogitsOfAnyFloatType) {
  run_thread_ranks({.num_ranks = 2}, [](Group& group) {
    const auto pf = make_allgather_reducescatter(group, /*monolithic=*/true);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Problem problem(3, 2, 8);
      problem.input.router_logits = random_tensor({3, 4}, dtype, 5);
      const PrepareResult rows = pf->prepare(problem.input, problem.context);
      ASSERT_EQ(rows.router_logits.dtype(), dtype);
      ASSERT_EQ(rows.router_logits.shape(), Shape({6, 4}));
      for (int64_t i = 0; i < 12; ++i) {
        EXPECT_EQ(get_float(rows.router_logits, 12 * group.rank() + i),
                  get_float(problem.input.router_logits, i));
      }
    }
  });
}

TEST(StandardBackendsOverRanks, AcceptAllButNaiveBatchedReductions) {
  run_thread_ranks({.num_ranks = 1}, [](Group& group) {
    for (const auto& pf : standard_backends(group)) {
      EXPECT_TRUE(pf->accepts(WeightAndReduceKind::kDelegate).ok) << pf->name();
      EXPECT_TRUE(pf->accepts(WeightAndReduceKind::kContiguous).ok) << pf->name();
      EXPECT_TRUE(pf->accepts(WeightAndReduceKind::kNoOp).ok) << pf->name();
      expect_mentions(pf->accepts(WeightAndReduceKind::kNaiveBatched).reason,
                      {"naive batched", "standard"});
    }
  });
}

// The input of finalize if the experts give their rows back unchanged.
FinalizeInput done_with(const PrepareResult& prepared,
                        const WeightAndReduce& reduce,
                        int64_t num_tokens) {
  FinalizeInput done;
  done.expert_output = prepared.x;
  done.topk_ids = prepared.topk_ids;
  done.topk_weights = prepared.topk_weights;
  done.weight_and_reduce = &reduce;
  done.output = Tensor::empty({num_tokens, prepared.x.shape().back()}, prepared.x.dtype());
  return done;
}

TEST(StandardBackendsOverRanks, FinalizeNeedsAPrepareOfAsManyTokens) {
  const auto no_op = make_weight_and_reduce(WeightAndReduceKind::kNoOp);
  run_thread_ranks({.num_ranks = 1}, [&](Group& group) {
    for (const auto& pf : standard_backends(group)) {
      SCOPED_TRACE(pf->name());
      Problem problem(3, 2, 8);
      const auto finalize = [&](const FinalizeInput& done) {
        return message_of<Error>([&] { pf->finalize(done, problem.context); });
      };
      const Parts too_early = {"finalize of micro-batch 0", "before its prepare"};
      const PrepareResult rows = make_no_ep()->prepare(problem.input, problem.context);
      expect_mentions(finalize(done_with(rows, *no_op, 3)), too_early);
      const PrepareResult prepared = pf->prepare(problem.input, problem.context);
      expect_mentions(finalize(done_with(prepared, *no_op, 2)), {"rows of o", "is 2, expected 3"});
      pf->forget(0);
      expect_mentions(finalize(done_with(prepared, *no_op, 3)), too_early);
    }
  });
}

TEST(HighThroughput, FinalizesOnce) {
  const auto no_op = make_weight_and_reduce(WeightAndReduceKind::kNoOp);
  run_thread_ranks({.num_ranks = 1}, [&](Group& group) {
    const auto pf = make_high_throughput(
        std::make_shared<HighThroughput>(group, ExpertPlacement::linear(4, 1)));
    Problem problem(3, 2, 8);
    const PrepareResult prepared = pf->prepare(problem.input, problem.context);
    const FinalizeInput done = done_with(prepared, *no_op, 3);
    pf->finalize(done, problem.context);
    expect_same_bits(done.output, problem.input.hidden);
    expect_error({"finalize of micro-batch 0", "before its prepare"},
                 [&] { pf->finalize(done, problem.context); });
  });
}

TEST(AllGatherReduceScatter, CountsWhatEachRankSends) {
  run_thread_ranks({.num_ranks = 3, .ranks_per_node = 2}, [](Group& group) {
    const auto pf = make_allgather_reducescatter(group);
    Problem problem(4 + group.rank(), 2, 8);
    problem.input.topk_ids.data<int32_t>()[1] = -1;
    for (int call = 0; call < 2; ++call) {
      pf->prepare(problem.input, problem.context);
    }
    const int64_t num_tokens = 2 * (4 + group.rank());
    const auto sent = pf->statistics();
    ASSERT_TRUE(sent.has_value());
    EXPECT_EQ(sent->selections, 2 * num_tokens - 2);
    EXPECT_EQ(sent->copies, 3 * num_tokens);
    EXPECT_EQ(sent->node_copies, (group.rank() < 2 ? 1 : 2) * num_tokens);
  });
}

TEST(NoEp, HandsOverTheRowsThemselves) {
  Problem problem(5, 2, 8);
  const auto result = make_no_ep()->prepare(problem.input, problem.context);
  EXPECT_EQ(result.x.raw(), problem.input.hidden.raw());
  EXPECT_FALSE(result.x_scale.defined());
  EXPECT_FALSE(result.topk_ids.defined());
  EXPECT_FALSE(result.topk_weights.defined());
  EXPECT_FALSE(result.expert_num_tokens.defined());
  EXPECT_EQ(problem.pool.bytes(), 0);
}

TEST(NoEp, WeightsItsInputOutOfPlaceInTheDtype) {
  Problem problem(1, 1, 1);
  problem.input.hidden = filled({1, 1}, DType::kBF16, {1.5f});
  problem.input.topk_weights = filled({1, 1}, DType::kF32, {1.0f + 0x1p-8f});  // 1 in bf16
  problem.input.apply_router_weight_on_input = true;
  const auto result = make_no_ep()->prepare(problem.input, problem.context);
  EXPECT_EQ(floats(result.x), std::vector<float>{1.5f});
  EXPECT_NE(result.x.raw(), problem.input.hidden.raw());
  problem.input.topk_weights = filled({1, 1}, DType::kF32, {-2});
  EXPECT_EQ(floats(make_no_ep()->prepare(problem.input, problem.context).x),
            std::vector<float>{-3});
  EXPECT_EQ(floats(problem.input.hidden), std::vector<float>{1.5f});
}

TEST(NoEp, QuantizesAsTheConfigSays) {
  constexpr int64_t kHidden = 256;
  const std::optional<GroupShape> block = GroupShape{128, 128};
  for (const QuantConfig& quant : {fp8(false), fp8(true), fp8(false, block)}) {
    Problem problem(6, 2, kHidden);
    problem.quant = quant;
    const auto result = make_no_ep()->prepare(problem.input, problem.context);
    const Quantized expected = quantize(problem.input.hidden, *activation_spec(quant.a1));
    expect_same_bits(result.x, expected.values);
    expect_same_bits(result.x_scale, expected.scale);
    const auto shape = *quant.scale_shape(6, kHidden);
    EXPECT_EQ(result.x_scale.shape(), Shape({shape[0], shape[1]}));

    problem.input.defer_input_quant = true;
    const auto deferred = make_no_ep()->prepare(problem.input, problem.context);
    EXPECT_EQ(deferred.x.raw(), problem.input.hidden.raw());
    EXPECT_FALSE(deferred.x_scale.defined());
  }
}

TEST(NoEp, UsesAStaticScale) {
  Problem problem(3, 2, 16);
  QuantTensors tensors = weight_scales(4);
  tensors.a1_scale = filled({1}, DType::kF32, {0.5f});
  problem.quant = QuantConfig::fp8_w8a8(tensors);
  const auto result = make_no_ep()->prepare(problem.input, problem.context);
  EXPECT_EQ(floats(result.x_scale), std::vector<float>{0.5f});
  for (int64_t i = 0; i < result.x.numel(); ++i) {
    const F8E4M3 q(get_float(problem.input.hidden, i) * 2.0f);
    EXPECT_EQ(result.x.data<F8E4M3>()[i].bits, q.bits);
  }
}

TEST(NoEp, RefusesScalesThatCannotTravel) {
  const auto pf = make_no_ep();
  QuantTensors tensors = weight_scales(4);
  const auto dynamic = QuantConfig::nvfp4(tensors);
  expect_mentions(pf->accepts(dynamic, false).reason, {"nvfp4", "a1_gscale"});
  EXPECT_TRUE(pf->accepts(dynamic, true).ok);
  tensors.a1_gscale = filled({4}, DType::kF32, {1});
  const auto per_expert = QuantConfig::nvfp4(tensors);
  expect_mentions(pf->accepts(per_expert, false).reason, {"4", "1"});
  EXPECT_TRUE(make_no_ep_batched(8, 4)->accepts(per_expert, false).ok);
  EXPECT_FALSE(make_no_ep_batched(8, 5)->accepts(per_expert, false).ok);
}

TEST(NoEp, DelegateMeansContiguous) {
  Problem problem(4, 2, 8);
  const auto pf = make_no_ep();
  FinalizeInput done;
  done.expert_output = random_tensor({4, 2, 8}, DType::kBF16, 5);
  done.topk_ids = problem.input.topk_ids;
  done.topk_weights = problem.input.topk_weights;
  std::vector<Tensor> outputs;
  for (const auto kind : {WeightAndReduceKind::kDelegate, WeightAndReduceKind::kContiguous}) {
    const auto reduce = make_weight_and_reduce(kind);
    done.weight_and_reduce = reduce.get();
    done.output = Tensor::empty({4, 8}, DType::kBF16);
    pf->finalize(done, problem.context);
    outputs.push_back(done.output);
  }
  expect_same_bits(outputs[0], outputs[1]);
}

TEST(NoEpBatched, GathersRowsPerExpertInTokenOrder) {
  Problem problem(4, 2, 1, DType::kF32);
  problem.input.hidden = filled({4, 1}, DType::kF32, {10, 11, 12, 13});
  problem.input.topk_ids = ids_of({4, 2}, {3, 0, 0, -1, 3, 1, 0, 3});
  const auto result = make_no_ep_batched(5, 4)->prepare(problem.input, problem.context);
  EXPECT_EQ(result.x.shape(), Shape({4, 5, 1}));
  EXPECT_EQ(ints(result.expert_num_tokens), (std::vector<int32_t>{3, 1, 0, 3}));
  EXPECT_EQ(floats(result.x[0].slice(0, 3)), (std::vector<float>{10, 11, 13}));
  EXPECT_EQ(floats(result.x[1].slice(0, 1)), (std::vector<float>{12}));
  EXPECT_EQ(floats(result.x[3].slice(0, 3)), (std::vector<float>{10, 12, 13}));
}

TEST(NoEpBatched, MapsGlobalIdsToLocalOnes) {
  Problem problem(2, 2, 1, DType::kF32);
  problem.input.hidden = filled({2, 1}, DType::kF32, {10, 11});
  problem.input.topk_ids = ids_of({2, 2}, {3, 0, 2, -1});
  problem.input.expert_map = ids_of({4}, {-1, -1, 0, 1});
  const auto result = make_no_ep_batched(2, 2)->prepare(problem.input, problem.context);
  EXPECT_EQ(ints(result.topk_ids), (std::vector<int32_t>{1, -1, 0, -1}));
  EXPECT_EQ(ints(result.expert_num_tokens), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(get_float(result.x, 0), 11);
  EXPECT_EQ(get_float(result.x, 2), 10);
}

TEST(NoEpBatched, RefusesIdsAndMapsThatDoNotFit) {
  const auto message = [](const Tensor& ids, const Tensor& map) {
    Problem problem(1, 2, 1);
    problem.input.topk_ids = ids;
    problem.input.expert_map = map;
    return message_of<Error>(
        [&] { make_no_ep_batched(2, 2)->prepare(problem.input, problem.context); });
  };
  const Tensor ids = ids_of({1, 2}, {0, 3}), map = ids_of({4}, {-1, -1, 0, 1});
  EXPECT_EQ(message(ids, map), "no error");
  const auto expect_refusal = [&](Parts parts, const Tensor& some_ids, const Tensor& some_map) {
    expect_mentions(message(some_ids, some_map), parts);
  };
  expect_refusal({"topk_ids of token 0, slot 1 is 9, expected -1 to 3"}, ids_of({1, 2}, {0, 9}),
                 map);
  expect_refusal({"topk_ids of token 0, slot 1 is 9, expected -1 to 3"}, ids_of({1, 2}, {0, 9}),
                 {});
  expect_refusal({"expert_map", "[3]", "[4]"}, ids, map.slice(0, 3));
  expect_refusal({"expert_map[1] is 2", "1"}, ids, ids_of({4}, {-1, 2, 0, 1}));
  expect_refusal({"expert_map", "f32", "i32"}, ids, Tensor::zeros({4}, DType::kF32));
}

TEST(NoEpBatched, FinalizeUndoesTheGather) {
  Problem problem(7, 2, 16);
  const auto pf = make_no_ep_batched(9, 4);
  const auto prepared = pf->prepare(problem.input, problem.context);
  problem.input.topk_weights = filled({7, 2}, DType::kF32, {0.5f});
  const auto delegate = make_weight_and_reduce(WeightAndReduceKind::kDelegate);
  FinalizeInput done = done_with(prepared, *delegate, 7);
  done.topk_ids = problem.input.topk_ids;
  done.topk_weights = problem.input.topk_weights;
  pf->finalize(done, problem.context);
  expect_same_bits(done.output, problem.input.hidden);  // two halves of a row add up to it exactly
}

TEST(NoEpBatched, ScalesIgnoreRowsThatAreNotInUse) {
  Problem problem(4, 1, 16);
  problem.input.topk_ids = ids_of({4, 1}, {0, 2, 0, 2});
  problem.quant = fp8(/*per_token=*/false);
  // Fills the workspace with infinities before the call.
  poison(problem.pool.get(0, WorkspaceSlot::kPrepare, {1 << 16}, DType::kU8));
  const Tensor stale = problem.pool.get(0, WorkspaceSlot::kPrepare, {1 << 15}, DType::kBF16);
  for (int64_t i = 0; i < stale.numel(); ++i) {
    set_float(stale, i, std::numeric_limits<float>::infinity());
  }
  const auto result = make_no_ep_batched(6, 4)->prepare(problem.input, problem.context);
  EXPECT_EQ(result.x_scale.shape(), Shape({4, 1, 1}));
  for (const int64_t expert : {0, 2}) {
    Tensor rows = Tensor::empty({2, 16}, DType::kBF16);
    for (int64_t r = 0; r < 2; ++r) {
      const Tensor token = problem.input.hidden[2 * r + (expert == 2 ? 1 : 0)];
      std::memcpy(rows[r].raw(), token.raw(), static_cast<size_t>(token.nbytes()));
    }
    const Quantized expected = quantize(rows, *activation_spec(problem.quant.a1));
    expect_same_bits(result.x[expert].slice(0, 2), expected.values);
    expect_same_bits(result.x_scale[expert], expected.scale);
  }
}

TEST(NoEpBatched, QuantizedScalesHaveTheBatchedShape) {
  for (const QuantConfig& quant : {fp8(true), fp8(false, GroupShape{128, 128})}) {
    Problem problem(5, 2, 256);
    problem.quant = quant;
    const auto result = make_no_ep_batched(5, 4)->prepare(problem.input, problem.context);
    const auto shape = *quant.batched_scale_shape(4, 5, 256);
    EXPECT_EQ(result.x_scale.shape(), Shape({shape[0], shape[1], shape[2]}));
    EXPECT_EQ(result.x.shape(), Shape({4, 5, 256}));
    // These schemes quantize rows one by one, so the rows equal those of the standard format.
    const Quantized all = quantize(problem.input.hidden, *activation_spec(quant.a1));
    std::vector<int64_t> next(4, 0);
    for (int64_t i = 0; i < problem.input.topk_ids.numel(); ++i) {
      const int64_t expert = problem.input.topk_ids.data<int32_t>()[i];
      const int64_t row = next[static_cast<size_t>(expert)]++;
      expect_same_bits(result.x[expert][row], all.values[i / 2]);
      expect_same_bits(result.x_scale[expert][row], all.scale[i / 2]);
    }
  }
}

TEST(NoEpBatched, RefusesWhatDoesNotFit) {
  Problem problem(4, 2, 8);
  expect_error({"max_num_tokens", "4", "3"},
               [&] { make_no_ep_batched(3, 4)->prepare(problem.input, problem.context); });
  problem.input.topk_ids =
      ids_of({4, 2}, {1, 1, 1, 1, 1, 0, 2, 3});  // as a custom router may choose
  expect_error({"expert 1", "5", "4"},
               [&] { make_no_ep_batched(4, 4)->prepare(problem.input, problem.context); });
  expect_error({"max_num_tokens is 0"}, [] { make_no_ep_batched(0, 4); });
  expect_error({"num_local_experts is 0"}, [] { make_no_ep_batched(4, 0); });
}

TEST(NoEpBatched, NoTokens) {
  Problem problem(0, 2, 8);
  const auto result = make_no_ep_batched(3, 4)->prepare(problem.input, problem.context);
  EXPECT_EQ(result.x.shape(), Shape({4, 3, 8}));
  EXPECT_EQ(ints(result.expert_num_tokens), (std::vector<int32_t>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace moebius::testing
