// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moebius/quantize.h"

namespace moebius::app {

namespace {

// Describes how an operand is quantized.  spec: nullopt when it is not.  row: "row" or "token".
std::string describe(const std::optional<QuantizeSpec>& spec, std::string_view row) {
  if (!spec) {
    return "not quantized";
  }
  std::string text(name(spec->format));
  if (spec->group.is_per_tensor()) {
    return text + " per tensor";
  }
  text += spec->group.is_per_token()
              ? fmt::format(" per {}", row)
              : fmt::format(" {}x{}", std::max<int64_t>(1, spec->group.row), spec->group.col);
  if (spec->global_scale_per_row) {
    text += fmt::format(", scaled per {}", row);
  }
  return spec->power_of_two_scale ? text + " with ue8m0 scales" : text;
}

std::string both(const std::string& first, const std::string& second) {
  return first == second ? first : first + " and " + second;
}

}  // namespace

std::string describe(const QuantConfig& quant) {
  const std::string weights =
      both(describe(weight_spec(quant.w1), "row"), describe(weight_spec(quant.w2), "row"));
  const std::string acts = both(describe(activation_spec(quant.a1), "token"),
                                describe(activation_spec(quant.a2), "token"));
  return fmt::format("weights {}, activations {}", weights, acts);
}

std::string describe_weights(const ExpertWeights& weights) {
  const auto one = [](const Tensor& weight, const QuantDesc& desc) {
    return desc.format ? describe(weight_spec(desc), "row") : std::string(name(weight.dtype()));
  };
  return both(one(weights.w1, weights.quant.w1), one(weights.w2, weights.quant.w2));
}

Json finite_or_text(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

void add_shape(Report& report, const ModelInfo& model) {
  report.line("model", "shape",
              model.shared_intermediate > 0
                  ? "hidden {hidden}, {num_experts} experts of {intermediate}, top-{topk}, "
                    "{num_shared_experts} shared of {shared_intermediate} in all"
                  : "hidden {hidden}, {num_experts} experts of {intermediate}, top-{topk}",
              {{"hidden", model.hidden},
               {"num_experts", model.num_experts},
               {"intermediate", model.intermediate},
               {"topk", model.topk},
               {"num_shared_experts", model.num_shared_experts},
               {"shared_intermediate", model.shared_intermediate}});
}

void add_quantization(Report& report,
                      const RunOptions& options,
                      const ModelInfo& model,
                      const LayerRun& run) {
  report.line("quantization", "quantization", "{checkpoint} checkpoint; {computed}",
              {{"checkpoint", model.quant_method},
               {"asked", options.quant},
               {"computed", run.quantization}});
}

void add_input(Report& report, const RunOptions& options, const LayerInput& input) {
  const bool from_file = !input.tensor.empty();
  report.line("input", "input",
              from_file ? "{tokens} tokens {dtype}, {tensor} of {source}"
                        : "{tokens} tokens {dtype}, {source} with seed {seed}",
              {{"tokens", input.hidden.dim(0)},
               {"dtype", std::string(name(input.hidden.dtype()))},
               {"source", input.source},
               {"tensor", from_file ? Json(input.tensor) : Json()},
               {"seed", from_file ? Json() : Json(options.seed)}});
}

void add_implementations(Report& report, const RunOptions& options, const LayerRun& run) {
  std::string chosen;
  std::vector<Figure> figures;
  for (const auto& [stage, implementation] : run.implementations) {
    chosen += fmt::format("{} {{{}}}, ", stage, stage);
    figures.push_back({stage, implementation});
  }
  figures.push_back({"format", run.format});
  figures.push_back({"threads", run.threads});
  figures.push_back({"device", run.device});
  report.line("implementation", "implementation",
              chosen + (options.device == "cuda" ? "{format} rows, {device}"
                                                 : "{format} rows, {threads} threads"),
              figures);
}

}  // namespace moebius::app
