// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Router::route() must give the bits of logits() and select(), and the order of slots that follows
// from the ids, in as many kernels as it takes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "moebius/error.h"
#include "moebius/graph.h"
#include "moebius/router.h"
#include "tests/conformance/router_runs.h"
#include "tests/error_text.h"
#include "tests/gpu_test.h"
#include "tests/router/random_inputs.h"

namespace moebius::testing {
namespace {

using Ints = std::vector<int32_t>;

Ints ints(const Tensor& tensor) {
  const auto* data = tensor.data<int32_t>();
  return {data, data + tensor.numel()};
}

Tensor poisoned(const Shape& shape, DType dtype) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  std::fill_n(tensor.bytes(), tensor.nbytes(), std::byte{0xb5});
  return tensor;
}

struct Problem {
  RouterConfig config;
  RouterWeights weights;
  Tensor hidden;
  Tensor expert_map = {};         // as in SlotOrder
  int64_t num_local_experts = 0;  // 0: all
};

Problem make_problem(const RouterConfig& config, int64_t num_tokens, DType dtype = DType::kBF16) {
  constexpr int64_t kHidden = 136;
  return {.config = config,
          .weights = {.gate = random_tensor({config.num_experts, kHidden}, dtype, 2, 0.3f)},
          .hidden = random_tensor({num_tokens, kHidden}, dtype, 1)};
}

// Tensors of a call, poisoned.
struct Routed {
  Routed(const Problem& p, const Place& place, DType id_dtype, bool with_order) {
    const int64_t tokens = p.hidden.dim(0), topk = p.config.topk;
    const auto room = [&](const Shape& shape, DType dtype) {
      return place.take(poisoned(shape, dtype));
    };
    out.logits = room({tokens, p.config.num_experts}, DType::kF32);
    out.ids = room({tokens, topk}, id_dtype);
    out.weights = room({tokens, topk}, DType::kF32);
    if (with_order) {
      const int64_t experts = p.num_local_experts > 0 ? p.num_local_experts : p.config.num_experts;
      const Tensor weights = room({100'000}, DType::kU8);
      order = {.expert_map = place.take(p.expert_map),
               .first_weights = weights.slice(1, weights.numel()),  // at no multiple of 16 bytes
               .expert_offsets = room({experts + 1}, DType::kI32),
               .expert_counts = room({experts}, DType::kI32),
               .row_of_slot = room({tokens, topk}, DType::kI32),
               .token_of_row = room({tokens * topk}, DType::kI32),
               .counters = room({2}, DType::kI32)};
      out.order = &order;
    }
  }
  Routed(const Routed&) = delete;  // since `out` has the address of the order
  Routed& operator=(const Routed&) = delete;

  SlotOrder order;
  RouteOutput out;
};

// Compares the order of `out` with a sort of its ids.
void expect_order_of_ids(const Problem& p, const Place& place, const RouteOutput& out) {
  const Tensor here = place.bring(out.ids);
  const Ids ids = Ids::of(here);
  const int64_t experts = out.order->expert_counts.numel();
  const auto local = [&](int64_t slot) -> int64_t {
    return p.expert_map ? p.expert_map.data<int32_t>()[ids[slot]] : ids[slot];
  };
  Ints counts(static_cast<size_t>(experts), 0), offsets(static_cast<size_t>(experts) + 1, 0);
  std::vector<int64_t> slots;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t slot = 0; slot < here.numel(); ++slot) {
      if (local(slot) == e) {
        slots.push_back(slot);
        ++counts[static_cast<size_t>(e)];
      }
    }
    offsets[static_cast<size_t>(e) + 1] = static_cast<int32_t>(slots.size());
  }
  Ints row_of_slot(static_cast<size_t>(here.numel()), -1);
  Ints token_of_row;
  for (const int64_t slot : slots) {
    row_of_slot[static_cast<size_t>(slot)] = static_cast<int32_t>(token_of_row.size());
    token_of_row.push_back(static_cast<int32_t>(slot / p.config.topk));
  }
  EXPECT_EQ(ints(place.bring(out.order->expert_offsets)), offsets);
  EXPECT_EQ(ints(place.bring(out.order->expert_counts)), counts);
  EXPECT_EQ(ints(place.bring(out.order->row_of_slot)), row_of_slot);
  Ints tokens = ints(place.bring(out.order->token_of_row));
  tokens.resize(token_of_row.size());
  EXPECT_EQ(tokens, token_of_row);
  EXPECT_EQ(ints(place.bring(out.order->counters)), Ints({0, 0}));
}

void expect_same(const RouteOutput& actual, const RouteOutput& expected, const Place& place) {
  EXPECT_SAME_BITS(place.bring(actual.logits), place.bring(expected.logits));
  EXPECT_SAME_BITS(place.bring(actual.ids).view_as(DType::kI32),
                   place.bring(expected.ids).view_as(DType::kI32));
  EXPECT_SAME_BITS(place.bring(actual.weights), place.bring(expected.weights));
}

// Routes on a GPU with and without an order.
void expect_routes(Problem p, DType id_dtype = DType::kI32) {
  const Place place(DeviceType::kCuda);
  p.config.device = place.device();
  const Router router(p.config, p.weights);
  const Tensor hidden = place.take(p.hidden);
  const Routed expected(p, place, id_dtype, false);
  router.logits(hidden, expected.out.logits, place.stream);
  router.select(expected.out.logits, expected.out.ids, expected.out.weights, place.stream);
  for (const bool with_order : {false, true}) {
    SCOPED_TRACE(with_order ? "order" : "no order");
    const Routed routed(p, place, id_dtype, with_order);
    router.route(hidden, routed.out, place.stream);
    expect_same(routed.out, expected.out, place);
    if (with_order) {
      expect_order_of_ids(p, place, routed.out);
    }
  }
}

TEST(RouteOnCpu, GivesLogitsAndSelection) {
  const Problem p = make_problem({.num_experts = 12, .topk = 3}, 5);
  const Router router(p.config, p.weights);
  const Place place(DeviceType::kCpu);
  const Routed expected(p, place, DType::kI32, false);
  router.logits(p.hidden, expected.out.logits, place.stream);
  router.select(expected.out.logits, expected.out.ids, expected.out.weights, place.stream);
  const Routed routed(p, place, DType::kI32, false);
  router.route(p.hidden, routed.out, place.stream);
  expect_same(routed.out, expected.out, place);
}

TEST(RouteOnCpu, RefusesAnOrder) {
  const Problem p = make_problem({.num_experts = 12, .topk = 3}, 5);
  const Router router(p.config, p.weights);
  const Place place(DeviceType::kCpu);
  const Routed routed(p, place, DType::kI32, true);
  EXPECT_THROW(router.route(p.hidden, routed.out, place.stream), Unsupported);
}

class Route : public GpuTest {};

// The kernel that chooses experts orders the slots of up to 128 tokens, in one way up to 16.
TEST_F(Route, GivesTheSameForAnyNumberOfTokens) {
  for (const int64_t num_tokens :
       {0, 1, 7, 8, 9, 15, 16, 17, 32, 33, 64, 100, 127, 128, 129, 256, 257, 600}) {
    SCOPED_TRACE("T " + std::to_string(num_tokens));
    expect_routes(make_problem({.num_experts = 128, .topk = 8, .renormalize = true}, num_tokens));
  }
}

TEST_F(Route, GivesTheSameForAnyNumberOfExperts) {
  for (const int64_t num_experts : {1, 2, 8, 31, 33, 129, 256, 300, 511, 512, 513, 1024}) {
    for (const int64_t num_tokens : {1, 12, 40}) {
      SCOPED_TRACE("E " + std::to_string(num_experts) + " T " + std::to_string(num_tokens));
      expect_routes(make_problem(
          {.num_experts = num_experts, .topk = std::min<int64_t>(num_experts, 6)}, num_tokens));
    }
  }
}

TEST_F(Route, GivesTheSameWithEveryScoring) {
  for (const Scoring scoring :
       {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus, Scoring::kSparseMixer}) {
    for (const bool has_groups : {false, true}) {
      if (has_groups && scoring == Scoring::kSparseMixer) {
        continue;
      }
      for (const int64_t num_tokens : {3, 16, 50}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(scoring)) + (has_groups ? " groups" : "") +
                     " T " + std::to_string(num_tokens));
        Problem p = make_problem({.num_experts = 64,
                                  .topk = 6,
                                  .scoring = scoring,
                                  .renormalize = true,
                                  .num_groups = has_groups ? 8 : 1,
                                  .topk_groups = has_groups ? 3 : 1},
                                 num_tokens);
        p.weights.bias = random_tensor({64}, DType::kF32, 3);
        if (has_groups) {
          p.weights.correction_bias = random_tensor({64}, DType::kF32, 4);
        }
        expect_routes(p);
      }
    }
  }
}

TEST_F(Route, GivesTheSameForEveryTypeOfOperandsAndIds) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType id_dtype : {DType::kI32, DType::kI64}) {
      for (const int64_t num_tokens : {4, 30}) {
        SCOPED_TRACE(std::string(name(dtype)) + " " + std::string(name(id_dtype)) + " T " +
                     std::to_string(num_tokens));
        expect_routes(make_problem({.num_experts = 40, .topk = 4}, num_tokens, dtype), id_dtype);
      }
    }
  }
}

// Tokens choose all experts, and more slots than one CTA sorts.  With more than 32 selections per
// token, slots of more than 16 tokens are ordered by a kernel of its own.
TEST_F(Route, GivesTheSameWithManySelections) {
  for (const int64_t topk : {16, 31, 32, 33, 128, 256}) {
    for (const int64_t num_tokens : {1, 2, 3, 16, 17, 64, 65, 128}) {
      SCOPED_TRACE("K " + std::to_string(topk) + " T " + std::to_string(num_tokens));
      expect_routes(make_problem({.num_experts = 256, .topk = topk}, num_tokens));
    }
  }
}

TEST_F(Route, OrdersByAMapOfExperts) {
  for (const int64_t num_tokens : {2, 16, 100, 700}) {
    SCOPED_TRACE("T " + std::to_string(num_tokens));
    Problem p = make_problem({.num_experts = 30, .topk = 4}, num_tokens);
    p.num_local_experts = 10;
    p.expert_map = Tensor::empty({30}, DType::kI32);
    for (int32_t e = 0; e < 30; ++e) {
      p.expert_map.data<int32_t>()[e] = e % 3 == 1 ? 9 - e / 3 : -1;
    }
    expect_routes(p);
  }
}

TEST_F(Route, IsCapturedByAGraph) {
  for (const int64_t num_tokens : {5, 60}) {
    SCOPED_TRACE("T " + std::to_string(num_tokens));
    const Place place(DeviceType::kCuda);
    Problem p = make_problem({.num_experts = 128, .topk = 8}, num_tokens);
    p.config.device = place.device();
    const Router router(p.config, p.weights);
    const Tensor hidden = place.take(p.hidden);
    const Routed expected(p, place, DType::kI32, true);
    router.route(hidden, expected.out, place.stream);
    const Routed routed(p, place, DType::kI32, true);
    router.route(hidden, routed.out, place.stream);
    const Graph graph(place.stream, [&] { router.route(hidden, routed.out, place.stream); });
    for (int i = 0; i < 3; ++i) {
      graph.launch();
      expect_same(routed.out, expected.out, place);
      expect_order_of_ids(p, place, routed.out);
    }
  }
}

TEST_F(Route, RefusesTensorsThatDoNotFit) {
  const Place place(DeviceType::kCuda);
  Problem p = make_problem({.num_experts = 12, .topk = 3}, 5);
  p.config.device = place.device();
  const Router router(p.config, p.weights);
  const Tensor hidden = place.take(p.hidden);
  Routed routed(p, place, DType::kI32, true);
  routed.order.token_of_row = routed.order.token_of_row.slice(0, 14);
  expect_error({"token_of_row", "[14]", "[15]"},
               [&] { router.route(hidden, routed.out, place.stream); });
}

}  // namespace
}  // namespace moebius::testing
