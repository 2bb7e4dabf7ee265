// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The cases of the router: logits and selection, compared bit by bit with `ref`, at the shapes of
// real models.
#include "app/bench/cases.h"
#include "app/forced_setting.h"
#include "app/run/random_tensor.h"
#include "moebius/router.h"
#include "problems/routers.h"
#include "router/impl.h"

namespace moebius::bench {

namespace {

using app::Value;

struct RouterProblem {
  std::string name;
  int64_t tokens = 0;
  int64_t hidden = 0;
  RouterConfig config;
  bool has_bias = false;
  bool has_correction_bias = false;
};

RouterConfig softmax(int64_t num_experts, int64_t topk) {
  return {.num_experts = num_experts, .topk = topk, .renormalize = true};
}

const RouterConfig kDeepseekV3 = deepseek_v3_router();
const RouterConfig kGptOss = {.num_experts = 128, .topk = 4, .score_after_topk = true};
const RouterConfig kLlama4 = {
    .num_experts = 16, .topk = 1, .scoring = Scoring::kSigmoid, .score_after_topk = true};

std::vector<RouterProblem> problems(bool is_small) {
  if (is_small) {
    return {
        {"mixtral", 33, 96, softmax(8, 2)},
        {"qwen3", 33, 96, softmax(128, 8)},
        {"gpt_oss", 33, 96, kGptOss, true},
        {"llama4", 33, 96, kLlama4},
        {"deepseek_v3", 33, 96, kDeepseekV3, false, true},
    };
  }
  return {
      {"mixtral_prefill", 1024, 4096, softmax(8, 2)},
      {"qwen3_decode", 64, 2048, softmax(128, 8)},
      {"qwen3_prefill", 1024, 2048, softmax(128, 8)},
      {"gpt_oss_prefill", 1024, 2880, kGptOss, true},
      {"llama4_prefill", 1024, 5120, kLlama4},
      {"dsv3_decode", 64, 7168, kDeepseekV3, false, true},
      {"dsv3_prefill", 1024, 7168, kDeepseekV3, false, true},
  };
}

// A router with the buffers of one call.
struct Instance {
  Instance(const RouterProblem& problem, const RouterWeights& parameters, std::string_view impl)
      : router([&] {
          const app::ForcedSetting forced("MOEBIUS_ROUTER", std::string(impl));
          return Router(problem.config, parameters);
        }()),
        logits(Tensor::empty({problem.tokens, problem.config.num_experts}, DType::kF32)),
        ids(Tensor::empty({problem.tokens, problem.config.topk}, DType::kI32)),
        weights(Tensor::empty(ids.shape(), DType::kF32)) {}

  Router router;
  Tensor logits;
  Tensor ids;
  Tensor weights;
};

void run_problem(const RouterProblem& problem,
                 const router::ImplEntry& impl,
                 const CaseSetup& setup) {
  RouterWeights weights;
  const Shape per_expert = {problem.config.num_experts};
  weights.gate = app::random_normal({per_expert[0], problem.hidden}, DType::kBF16, 1, 0.02f);
  if (problem.has_bias) {
    weights.bias = app::random_normal(per_expert, DType::kBF16, 2, 0.1f);
  }
  if (problem.has_correction_bias) {
    weights.correction_bias = app::random_normal(per_expert, DType::kF32, 3, 0.1f);
  }
  const Tensor hidden = app::random_normal({problem.tokens, problem.hidden}, DType::kBF16, 4);
  Instance expected(problem, weights, "ref");
  expected.router.logits(hidden, expected.logits, setup.stream);

  Case c;
  c.impl = impl.name;
  std::optional<Instance> actual;
  c.refusal = impl.supports({problem.config, weights.gate, {}, {}, {}}).reason;
  if (c.refusal.empty()) {
    actual.emplace(problem, weights, impl.name);
  }
  const double tokens = static_cast<double>(problem.tokens);
  c.problem = problem.name + "/logits";
  if (setup.wants(c.problem, c.impl)) {
    const double flops =
        2.0 * tokens * static_cast<double>(problem.hidden * problem.config.num_experts);
    c.call = [&] { actual->router.logits(hidden, actual->logits, setup.stream); };
    c.reference = [&] {
      return seconds_of([&] { expected.router.logits(hidden, expected.logits, setup.stream); });
    };
    c.difference = [&] { return byte_difference("logits", actual->logits, expected.logits); };
    c.metrics = [=](double seconds) {
      return std::vector<Value>{tokens / seconds, flops / seconds * 1e-9};
    };
    setup.visit(c);
  }
  c.problem = problem.name + "/select";
  if (setup.wants(c.problem, c.impl)) {
    const auto select = [&](Instance& by) {
      by.router.select(expected.logits, by.ids, by.weights, setup.stream);
    };
    c.call = [&] { select(*actual); };
    c.reference = [&] { return seconds_of([&] { select(expected); }); };
    c.difference = [&] {
      const auto ids = byte_difference("ids", actual->ids, expected.ids);
      return ids ? ids : byte_difference("weights", actual->weights, expected.weights);
    };
    c.metrics = [=](double seconds) { return std::vector<Value>{tokens / seconds, Value()}; };
    setup.visit(c);
  }
}

}  // namespace

void run_router_cases(const CaseSetup& setup) {
  for (const RouterProblem& problem : problems(setup.is_small)) {
    for (const router::ImplEntry& impl : router::impls()) {
      if (setup.wants(problem.name + "/logits", impl.name) ||
          setup.wants(problem.name + "/select", impl.name)) {
        run_problem(problem, impl, setup);
      }
    }
  }
}

}  // namespace moebius::bench
