// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The cases of the experts: every implementation in every quantization scheme is compared with
// `ref`. At real sizes they report FLOP/s and the rate at which weights are read.
#include <fmt/format.h>

#include <algorithm>

#include "app/bench/cases.h"
#include "app/bench/experts_call.h"
#include "app/run/layer_cost.h"
#include "moebius/experts.h"
#include "problems/expert_problem.h"
#include "problems/gemm_tolerance.h"
#include "problems/sizes.h"

namespace moebius::bench {

namespace {

using app::Value;

// How many tokens `ref` computes of a large problem.
constexpr int64_t kReferenceTokens = 8;

// The schemes of published checkpoints.
constexpr Scheme kBenchSchemes[] = {
    kSchemes[0],
    {"fp8_block", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kBlock, {128, 128}},
    {"int8_w8a8_token", QuantFormat::kInt8, QuantFormat::kInt8, WeightScales::kChannel, {}, true},
    {"int4_w4a16", std::nullopt, QuantFormat::kInt4, WeightScales::kGroup, {1, 32}},
    {"mxfp4_w4a16", std::nullopt, QuantFormat::kMxfp4, WeightScales::kGroup, {1, 32}},
    {"nvfp4", QuantFormat::kNvfp4, QuantFormat::kNvfp4, WeightScales::kGroup, {1, 16}},
};

ExpertsInput first_tokens(const ExpertsInput& input, int64_t num_tokens) {
  ExpertsInput part = input;
  part.x = input.x.slice(0, num_tokens);
  part.topk_ids = input.topk_ids.slice(0, num_tokens);
  part.topk_weights = input.topk_weights.slice(0, num_tokens);
  return part;
}

// The relative error over the rows that `expected` has; in a batched format over those that the
// counts name.
double error_of(const Tensor& actual, const Tensor& expected, const Tensor& expert_num_tokens) {
  RelativeError error;
  const int64_t per_expert =
      expert_num_tokens.defined() ? expected.dim(1) * expected.dim(2) : expected.numel();
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const bool is_row =
        !expert_num_tokens.defined() ||
        i % per_expert / expected.dim(2) < expert_num_tokens.data<int32_t>()[i / per_expert];
    if (is_row) {
      error.add(get_float(actual, i), get_float(expected, i));
    }
  }
  return error.value();
}

app::LoadSummary load_of(const ExpertProblem& problem) {
  const Tensor load = Tensor::zeros({problem.desc.num_experts}, DType::kI64);
  auto* counts = load.data<int64_t>();
  if (problem.input.topk_ids.defined()) {
    for (int64_t i = 0; i < problem.input.topk_ids.numel(); ++i) {
      ++counts[problem.input.topk_ids.data<int32_t>()[i]];
    }
  } else {
    std::copy_n(problem.input.expert_num_tokens.data<int32_t>(), load.numel(), counts);
  }
  return app::summarize_load(load);
}

std::string case_name(const Problem& problem, const ExpertCase& c) {
  return fmt::format("{}/{}{}", problem.name, c.scheme.name,
                     c.format == ActivationFormat::kBatched ? "/batched" : "");
}

void run_impls(const Problem& problem, const ExpertCase& expert_case, const CaseSetup& setup) {
  const std::string name = case_name(problem, expert_case);
  std::vector<const ExpertsImpl*> impls;
  for (const ExpertsImpl& impl : experts_impls()) {
    // At real sizes `ref` takes minutes, so it runs only when asked for.
    const bool is_slow = impl.name == "ref" && !setup.is_small && setup.impl != "ref";
    if (impl.device == setup.stream.device().type && !is_slow && setup.wants(name, impl.name)) {
      impls.push_back(&impl);
    }
  }
  if (impls.empty()) {
    return;
  }
  ExpertProblem made = ExpertProblemMaker().make(problem, expert_case);
  if (setup.stream.device().is_cpu()) {
    made.desc.weight_memory = WeightMemory::kLent;  // every implementation has the same
  }
  const app::LoadSummary load = load_of(made);
  const bool is_part = !setup.is_small && problem.num_tokens > kReferenceTokens;
  const auto make_call = [&](std::string_view impl, const ExpertsInput& input) {
    return ExpertsCall(make_experts(made.desc, made.weights, setup.stream, impl), input,
                       setup.stream);
  };
  const ExpertsCall reference =
      make_call("ref", is_part ? first_tokens(made.input, kReferenceTokens) : made.input);
  const double share =
      is_part ? static_cast<double>(kReferenceTokens) / static_cast<double>(problem.num_tokens)
              : 1.0;
  std::optional<double> reference_seconds;

  for (const ExpertsImpl* impl : impls) {
    Case c;
    c.problem = name;
    c.impl = impl->name;
    std::optional<ExpertsCall> actual;
    c.refusal = impl->supports(made.desc, made.weights).reason;
    if (c.refusal.empty()) {
      actual.emplace(make_call(impl->name, made.input));
    }
    c.call = [&] { actual->apply(); };
    c.reference = [&] {
      if (!reference_seconds) {
        reference_seconds = seconds_of([&] { reference.apply(); }) / share;
      }
      return *reference_seconds;
    };
    c.difference = [&]() -> std::optional<std::string> {
      const double error =
          error_of(actual->output(), reference.output(), made.input.expert_num_tokens);
      const double allowed = tolerance(made.desc.in_dtype, expert_case.scheme.activation,
                                       std::max(made.desc.hidden, made.desc.intermediate));
      if (error <= allowed) {
        return std::nullopt;
      }
      return fmt::format("relative error {:.2e}, tolerance {:.2e}", error, allowed);
    };
    c.metrics = [&](double seconds) {
      const double flops = 2.0 * static_cast<double>(load.rows) *
                           static_cast<double>(made.desc.hidden) *
                           static_cast<double>(made.desc.w1_rows() + made.desc.intermediate);
      const double bytes = static_cast<double>(app::weight_bytes(made.weights)) *
                           static_cast<double>(made.desc.num_experts - load.idle) /
                           static_cast<double>(made.desc.num_local_experts);
      return std::vector<Value>{flops / seconds * 1e-9, bytes / seconds * 1e-9};
    };
    setup.visit(c);
  }
}

}  // namespace

void run_experts_cases(const CaseSetup& setup) {
  ExpertCase expert_case;
  if (setup.is_small) {
    for (const ActivationFormat format :
         {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
      expert_case.format = format;
      for (const Scheme& scheme : kSchemes) {
        expert_case.scheme = scheme;
        run_impls(kTiny, expert_case, setup);
      }
    }
    return;
  }
  for (const Problem& problem : kBenchProblems) {
    for (const Scheme& scheme : kBenchSchemes) {
      expert_case.scheme = scheme;
      run_impls(problem, expert_case, setup);
    }
  }
}

}  // namespace moebius::bench
