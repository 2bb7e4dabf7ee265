// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers whose weights are replaced between calls, and whose memory they compute on.
// tests/conformance/experts_update_suite.h does the same for the experts in every scheme.
#include <gtest/gtest.h>

#include <string>

#include "tests/layer/backends.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 9;

Tensor hidden_states() {
  return random_tensor({kTokens, SmallLayer::kHidden}, DType::kF32, 61);
}

// All weights are other ones: those of SmallLayer upside down, and a gate for the shared experts.
MoeLayerWeights other(MoeLayerWeights weights, bool is_new) {
  weights.shared_gate = random_tensor({1, SmallLayer::kHidden}, DType::kF32, is_new ? 71 : 72);
  if (!is_new) {
    return weights;
  }
  for (Tensor* tensor : {&weights.experts.w1, &weights.experts.w2, &weights.shared.w1,
                         &weights.shared.w2, &weights.router.gate}) {
    const Tensor turned = Tensor::empty(tensor->shape(), tensor->dtype());
    for (int64_t i = 0; i < turned.numel(); ++i) {
      set_float(turned, i, get_float(*tensor, turned.numel() - 1 - i));
    }
    *tensor = turned;
  }
  return weights;
}
MoeLayerWeights old_weights(const ParallelConfig& parallel = {}) {
  return other(SmallLayer::shard(parallel), false);
}
MoeLayerWeights new_weights(const ParallelConfig& parallel = {}) {
  return other(SmallLayer::shard(parallel), true);
}

TEST(UpdateWeights, GiveTheBitsOfAFreshLayer) {
  for (const char* experts : {"cpu_portable", "ref"}) {
    SCOPED_TRACE(experts);
    MoeLayerOptions options;
    options.experts = experts;
    MoeLayer layer(old_weights(), options, {});
    const Tensor before = forward(layer, hidden_states());
    MoeLayer fresh(new_weights(), options, {});
    const Tensor expected = forward(fresh, hidden_states());
    layer.update_weights(new_weights(), {});
    expect_same_bits(forward(layer, hidden_states()), expected);
    expect_same_bits(layer.expert_load(), fresh.expert_load());  // the router, too
    layer.update_weights(old_weights(), {});
    expect_same_bits(forward(layer, hidden_states()), before);
  }
}

// Each part is replaced alone.
TEST(UpdateWeights, LeaveAloneWhatIsLeftOut) {
  const auto parts = [](const MoeLayerWeights& from, int part) {
    MoeLayerWeights some;
    if (part == 0) {
      some.experts = from.experts;
    } else if (part == 1) {
      some.shared = from.shared;
    } else if (part == 2) {
      some.shared_gate = from.shared_gate;
    } else {
      some.router = from.router;
    }
    return some;
  };
  MoeLayer layer(old_weights(), SmallLayer::options(), {});
  MoeLayerWeights mixed = old_weights();
  for (int part = 0; part < 4; ++part) {
    SCOPED_TRACE(part);
    const MoeLayerWeights some = parts(new_weights(), part);
    layer.update_weights(some, {});
    mixed.experts = part == 0 ? some.experts : mixed.experts;
    mixed.shared = part == 1 ? some.shared : mixed.shared;
    mixed.shared_gate = part == 2 ? some.shared_gate : mixed.shared_gate;
    mixed.router = part == 3 ? some.router : mixed.router;
    MoeLayer fresh(mixed, SmallLayer::options(), {});
    expect_same_bits(forward(layer, hidden_states()), forward(fresh, hidden_states()));
  }
}

TEST(UpdateWeights, AreDoneByEachRankForItsShare) {
  for (const auto backend : kBackends) {
    run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
      SCOPED_TRACE(name(backend));
      const auto parallel = ParallelConfig::make(1, 0, 2, group.rank(), true, backend);
      const Stream stream = Stream::cpu(1);
      MoeLayer layer(old_weights(parallel), SmallLayer::options(), stream, &group);
      forward(layer, hidden_states(), DType::kF32, stream);
      layer.update_weights(new_weights(parallel), stream);
      MoeLayer fresh(new_weights(parallel), SmallLayer::options(), stream, &group);
      expect_same_bits(forward(layer, hidden_states(), DType::kF32, stream),
                       forward(fresh, hidden_states(), DType::kF32, stream));
    });
  }
}

// One part that does not fit keeps all others from being written.
TEST(UpdateWeights, ThatDifferChangeNothing) {
  MoeLayer layer(old_weights(), SmallLayer::options(), {});
  const Tensor before = forward(layer, hidden_states());
  const auto expect_refused = [&](Parts parts, auto change) {
    MoeLayerWeights weights = new_weights();
    change(weights);
    expect_error(parts, [&] { layer.update_weights(weights, {}); });
    expect_same_bits(forward(layer, hidden_states()), before);
  };
  expect_refused({"gate", "[5, 128]", "[6, 128]"},
                 [](MoeLayerWeights& w) { w.router.gate = w.router.gate.slice(0, 5); });
  expect_refused({"gate", "bf16", "f32"},
                 [](MoeLayerWeights& w) { w.router.gate = convert(w.router.gate, DType::kBF16); });
  expect_refused({"gate", "NaN"}, [](MoeLayerWeights& w) {
    set_float(w.router.gate, 3, std::numeric_limits<float>::quiet_NaN());
  });
  expect_refused({"bias is given", "missing"},
                 [](MoeLayerWeights& w) { w.router.bias = Tensor::zeros({6}, DType::kF32); });
  expect_refused({"shape of w1", "[1, 96, 128]", "[1, 48, 128]"}, [](MoeLayerWeights& w) {
    w.shared.w1 = w.shared.w1.view({96, 128}).slice(0, 48).view({1, 48, 128});
  });
  expect_refused({"gate of the shared experts", "bf16", "f32"},
                 [](MoeLayerWeights& w) { w.shared_gate = convert(w.shared_gate, DType::kBF16); });
  expect_refused({"shape of w2", "[5, 128, 48]", "[6, 128, 48]"},
                 [](MoeLayerWeights& w) { w.experts.w2 = w.experts.w2.slice(0, 5); });
  expect_refused({"w1 is", "fp8", "not quantized"},
                 [](MoeLayerWeights& w) { w.experts.quant.w1.format = QuantFormat::kFp8; });
}

TEST(UpdateWeights, OfPartsThatTheLayerDoesNotOwnAreRefused) {
  MoeLayerWeights weights = SmallLayer::whole();
  weights.shared = {};
  weights.router = {};
  weights.router_config = {};
  const auto triple = std::make_shared<const SharedExperts>(
      [](const Tensor&, const Tensor&, const CallContext&) {});
  MoeLayer layer(weights, SmallLayer::options(), {}, nullptr, {.shared_experts = triple});
  MoeLayerWeights shared;
  shared.shared = SmallLayer::whole().shared;
  expect_error({"shared experts are the caller's"}, [&] { layer.update_weights(shared, {}); });
  MoeLayerWeights router;
  router.router = SmallLayer::whole().router;
  expect_error({"no router of its own"}, [&] { layer.update_weights(router, {}); });
  MoeLayer without_shared(weights, SmallLayer::options(), {});
  expect_error({"shared experts are given, expected none"},
               [&] { without_shared.update_weights(shared, {}); });
}

void spoil(const MoeLayerWeights& weights) {
  for (const Tensor& tensor : {weights.experts.w1, weights.experts.w2, weights.shared.w1,
                               weights.shared.w2, weights.shared_gate, weights.router.gate}) {
    poison(tensor);
  }
}

TEST(WeightMemory, TheLayersOwnDoesNotFollowTheCallers) {
  for (const char* experts : {"cpu_portable", "ref"}) {
    MoeLayerOptions options;
    options.experts = experts;
    const MoeLayerWeights weights = old_weights();
    MoeLayer layer(weights, options, {});
    EXPECT_FALSE(layer.retains_weights());
    const Tensor before = forward(layer, hidden_states());
    spoil(weights);
    expect_same_bits(forward(layer, hidden_states()), before);
    const MoeLayerWeights given = new_weights();
    layer.update_weights(given, {});
    const Tensor after = forward(layer, hidden_states());
    spoil(given);
    expect_same_bits(forward(layer, hidden_states()), after);
  }
}

// The caller writes to what it has lent.
TEST(WeightMemory, LentWeightsAreUpdatedInPlace) {
  for (const char* experts : {"cpu_portable", "ref"}) {
    MoeLayerOptions options;
    options.experts = experts;
    options.weight_memory = WeightMemory::kLent;
    const MoeLayerWeights lent = old_weights();
    MoeLayer layer(lent, options, {});
    EXPECT_TRUE(layer.retains_weights());
    const MoeLayerWeights values = new_weights();
    copy(values.experts.w1, lent.experts.w1, {});
    copy(values.experts.w2, lent.experts.w2, {});
    MoeLayerWeights changed;
    changed.experts = lent.experts;
    layer.update_weights(changed, {});
    MoeLayerWeights mixed = old_weights();
    mixed.experts = values.experts;
    MoeLayer fresh(mixed, options, {});
    expect_same_bits(forward(layer, hidden_states()), forward(fresh, hidden_states()));
    changed.experts = values.experts;
    expect_error({"w1 is at", "where it was lent"}, [&] { layer.update_weights(changed, {}); });
  }
}

}  // namespace
}  // namespace moebius::testing
