// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers with parts of the caller: router, routing, experts, prepare/finalize, shared experts.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "layer/layer_parts.h"
#include "moebius/all2all.h"
#include "tests/layer/backends.h"
#include "tests/layer/fakes.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 13;

Tensor hidden_states() {
  return random_tensor({kTokens, SmallLayer::kHidden}, DType::kF32, 41);
}

// Experts of the caller, which count their calls and leave the work to ours.
class CountingExperts final : public ForwardingExperts {
 public:
  CountingExperts(std::unique_ptr<Experts> inner, int* num_calls)
      : ForwardingExperts(std::move(inner)), num_calls_(num_calls) {
    traits_.name = "counting";
    traits_.retains_weights = true;
  }

 private:
  void note(const ExpertsInput&) const override { ++*num_calls_; }

  int* num_calls_;
};

// Prepare/finalize of the caller, which counts its calls and leaves the transfer to ours.
class CountingTransport final : public PrepareFinalize {
 public:
  CountingTransport(std::unique_ptr<PrepareFinalize> inner, int* num_calls)
      : PrepareFinalize(traits_of(*inner)), inner_(std::move(inner)), num_calls_(num_calls) {}
  Support accepts(WeightAndReduceKind kind) const override { return inner_->accepts(kind); }
  Support accepts(const QuantConfig& quant, bool defer) const override {
    return inner_->accepts(quant, defer);
  }
  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    ++*num_calls_;
    return inner_->prepare(input, context);
  }
  void finalize(const FinalizeInput& input, const CallContext& context) override {
    inner_->finalize(input, context);
  }
  void forget(int microbatch) override { inner_->forget(microbatch); }

 private:
  static PrepareFinalizeTraits traits_of(const PrepareFinalize& inner) {
    PrepareFinalizeTraits traits = inner.traits();
    traits.name = "counting";
    traits.is_async = false;
    return traits;
  }

  std::unique_ptr<PrepareFinalize> inner_;
  int* num_calls_;
};

// A backend as the layer itself would make it.
std::unique_ptr<PrepareFinalize> make_small(All2AllBackend backend, Group& group) {
  const auto placement = ExpertPlacement::linear(SmallLayer::kExperts, group.size());
  switch (backend) {
    case All2AllBackend::kHighThroughput:
      return make_high_throughput(std::make_shared<HighThroughput>(group, placement));
    case All2AllBackend::kLowLatency:
      return make_low_latency(
          std::make_shared<LowLatency>(group, placement,
                                       LowLatencyOptions{.max_tokens = SmallLayer::kMaxTokens,
                                                         .hidden = SmallLayer::kHidden,
                                                         .topk = SmallLayer::kTopk,
                                                         .in_dtype = DType::kF32}));
    default:
      return make_allgather_reducescatter(group);
  }
}

// A rank's share of a layer without the weights of its experts, which come as a part.
struct WithOwnExperts {
  WithOwnExperts(const ParallelConfig& parallel, ActivationFormat format, int* num_calls) {
    weights = SmallLayer::shard(parallel);
    weights.config.validate();
    MoeLayerOptions options;
    options.format = format;
    parts.experts = std::make_unique<CountingExperts>(
        make_experts(routed_desc(weights, options), std::move(weights.experts), Stream::cpu(1),
                     "cpu_portable"),
        num_calls);
    weights.experts = {};
  }
  MoeLayerWeights weights;
  MoeLayerParts parts;
};

Tensor run(MoeLayer& layer, const Tensor& hidden) {
  return forward(layer, hidden, DType::kF32, Stream::cpu(1));
}

class OwnParts : public ::testing::TestWithParam<All2AllBackend> {};

// Own experts, an own transport that the layer knows nothing about, or both give the layer's bits.
TEST_P(OwnParts, GiveTheBitsOfTheLayersOwn) {
  for (const int num_ranks : {1, 2, 3}) {
    run_thread_ranks({.num_ranks = num_ranks}, [&](Group& group) {
      SCOPED_TRACE(num_ranks);
      const auto parallel = ParallelConfig::make(1, 0, num_ranks, group.rank(), true, GetParam());
      const ActivationFormat format = format_of(GetParam());
      const Tensor hidden = hidden_states().slice(0, 8 - group.rank());
      const Stream stream = Stream::cpu(1);
      MoeLayer expected_layer(SmallLayer::shard(parallel), SmallLayer::options(), stream, &group);
      const Tensor expected = run(expected_layer, hidden);
      for (const bool own_experts : {true, false}) {
        for (const bool own_transport : {true, false}) {
          int expert_calls = 0;
          int transport_calls = 0;
          WithOwnExperts made(parallel, format, &expert_calls);
          if (!own_experts) {
            made.parts.experts = nullptr;
            made.weights = SmallLayer::shard(parallel);
          }
          if (own_transport) {
            // The config tells how the ranks share the experts; nothing names a backend of ours.
            made.weights.config.parallel.backend = All2AllBackend::kNone;
            made.parts.prepare_finalize = std::make_unique<CountingTransport>(
                make_small(GetParam(), group), &transport_calls);
          }
          MoeLayer layer(std::move(made.weights), SmallLayer::options(), stream,
                         own_transport ? nullptr : &group, std::move(made.parts));
          expect_same_bits(run(layer, hidden), expected);
          EXPECT_EQ(expert_calls, own_experts ? 1 : 0);
          EXPECT_EQ(transport_calls, own_transport ? 1 : 0);
          EXPECT_EQ(layer.retains_weights(), own_experts);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, OwnParts, ::testing::ValuesIn(kBackends), [](const auto& test) {
  return std::string(name(test.param));
});

TEST(OwnRouting, ChoosesForTheLayer) {
  MoeLayerWeights weights = SmallLayer::whole();
  const auto router = std::make_shared<const Router>(weights.router_config, weights.router);
  MoeLayer routed(SmallLayer::whole(), SmallLayer::options(), Stream::cpu(1));
  const Tensor expected = run(routed, hidden_states());

  weights.router_config = {};
  weights.router = {};
  MoeLayer with_router(weights, SmallLayer::options(), Stream::cpu(1), nullptr, {.router = router});
  expect_same_bits(run(with_router, hidden_states()), expected);
  EXPECT_EQ(with_router.router(), router.get());

  const Routing routing = [&](const Tensor& hidden, const Tensor& ids, const Tensor& chosen,
                              const CallContext& context) {
    const Tensor logits = Tensor::empty({hidden.dim(0), SmallLayer::kExperts}, DType::kF32);
    router->logits(hidden, logits, context.stream);
    router->select(logits, ids, chosen, context.stream);
  };
  MoeLayer with_routing(weights, SmallLayer::options(), Stream::cpu(1), nullptr,
                        {.routing = routing});
  expect_same_bits(run(with_routing, hidden_states()), expected);
  expect_same_bits(with_routing.expert_load(), routed.expert_load());

  const Routing wrong = [](const Tensor&, const Tensor& ids, const Tensor& chosen,
                           const CallContext&) {
    std::fill_n(ids.data<int32_t>(), ids.numel(), 77);
    std::fill_n(chosen.data<float>(), chosen.numel(), 1.0f);
  };
  MoeLayer refused(weights, SmallLayer::options(), Stream::cpu(1), nullptr, {.routing = wrong});
  expect_error({"token 0, slot 0 is 77, expected -1 to 5"}, [&] { run(refused, hidden_states()); });
}

// The function triples hidden states, on every rank and in every micro-batch.
TEST(OwnSharedExperts, AreAnyFunction) {
  const auto triple = std::make_shared<const SharedExperts>(
      [](const Tensor& hidden, const Tensor& output, const CallContext&) {
        for (int64_t i = 0; i < hidden.numel(); ++i) {
          set_float(output, i, 3 * get_float(hidden, i));
        }
      });
  MoeLayerWeights routed_only = SmallLayer::whole();
  routed_only.shared = {};
  const Tensor hidden = hidden_states();
  const Tensor routed = run_alone(routed_only, SmallLayer::options(), hidden);
  const Tensor expected = Tensor::empty(hidden.shape(), DType::kF32);
  for (int64_t i = 0; i < hidden.numel(); ++i) {
    set_float(expected, i, get_float(routed, i) + 3 * get_float(hidden, i));
  }
  for (const auto backend : kBackends) {
    for (const int microbatches : {1, 2}) {
      run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
        SCOPED_TRACE(name(backend));
        MoeLayerWeights weights =
            SmallLayer::shard(ParallelConfig::make(1, 0, 2, group.rank(), true, backend));
        weights.shared = {};
        MoeLayerOptions options = SmallLayer::options();
        options.kernel.microbatches = microbatches;
        options.kernel.min_microbatch_tokens = 0;
        MoeLayer layer(std::move(weights), options, Stream::cpu(1), &group,
                       {.shared_experts = triple});
        EXPECT_LE(relative_error(run(layer, hidden), expected), 1e-6);
        EXPECT_FALSE(layer.retains_weights());
      });
    }
  }
}

TEST(OwnParts, ThatDoNotFitAreRefused) {
  const auto make = [](MoeLayerWeights weights, MoeLayerParts parts, MoeLayerOptions options = {}) {
    MoeLayer(std::move(weights), options, Stream::cpu(1), nullptr, std::move(parts));
  };
  const auto router_of = [](int64_t num_experts, int64_t topk) {
    return std::make_shared<const Router>(
        RouterConfig{.num_experts = num_experts, .topk = topk},
        RouterWeights{Tensor::zeros({num_experts, SmallLayer::kHidden}, DType::kF32)});
  };
  const Routing routing = [](const Tensor&, const Tensor&, const Tensor&, const CallContext&) {};
  expect_error({"router", "routing", "one of them"},
               [&] { make(SmallLayer::whole(), {.router = router_of(6, 2), .routing = routing}); });
  expect_error({"experts of the router", "7", "6"},
               [&] { make(SmallLayer::whole(), {.router = router_of(7, 2)}); });
  expect_error({"topk of the router", "3", "2"},
               [&] { make(SmallLayer::whole(), {.router = router_of(6, 3)}); });
  expect_error({"gate of the router is missing"}, [&] {
    make(SmallLayer::whole(), {.router = std::make_shared<const Router>(
                                   RouterConfig{.num_experts = 6, .topk = 2}, RouterWeights{})});
  });
  int calls = 0;
  expect_error({"experts are given twice"}, [&] {
    WithOwnExperts made({}, ActivationFormat::kStandard, &calls);
    make(SmallLayer::whole(), std::move(made.parts));
  });
  expect_error({"format of the experts", "batched", "standard"}, [&] {
    WithOwnExperts made({}, ActivationFormat::kBatched, &calls);
    make(std::move(made.weights), std::move(made.parts));
  });
  expect_error({"in_dtype of the experts", "f32", "bf16"}, [&] {
    WithOwnExperts made({}, ActivationFormat::kStandard, &calls);
    made.weights.config.in_dtype = DType::kBF16;
    make(std::move(made.weights), std::move(made.parts));
  });
  expect_error({"shared experts are given twice"}, [&] {
    make(SmallLayer::whole(), {.shared_experts = std::make_shared<const SharedExperts>(
                                   [](const Tensor&, const Tensor&, const CallContext&) {})});
  });
  expect_error({"function", "empty"}, [] { SharedExperts{SharedExpertsFunction()}; });
  expect_error({"4 ranks with dp_size 2 share tokens"}, [&] {
    MoeLayerWeights weights =
        SmallLayer::shard(ParallelConfig::make(2, 0, 2, 0, true, All2AllBackend::kNone));
    make(std::move(weights), {.prepare_finalize = make_no_ep()});
  });
}

}  // namespace
}  // namespace moebius::testing
