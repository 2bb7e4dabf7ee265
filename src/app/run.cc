// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>

#include "app/commands.h"
#include "app/layer_input.h"
#include "app/machine.h"
#include "app/not_built.h"
#include "app/output_file.h"
#include "app/progress.h"
#include "app/run_report.h"
#include "app/statistics.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"
#include "moebius/moe_layer.h"
#include "quant/impls.h"

namespace moebius::app {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

void expect_outputs_writable(const RunOptions& options) {
  expect_writable("--output", options.output);
  expect_writable("--json", options.json);
  if (!options.json.empty() && options.json == options.output) {
    throw InvalidArgument(fmt::format("--json and --output are both {}", options.json));
  }
}

int64_t choose_layer(const RunOptions& options, const ModelInfo& model) {
  const auto& layers = model.moe_layers;
  if (layers.empty()) {
    throw InvalidArgument(
        fmt::format("{}: none of its {} layers has experts", options.model, model.num_layers));
  }
  if (!options.layer) {
    return layers.front();
  }
  if (std::find(layers.begin(), layers.end(), *options.layer) == layers.end()) {
    throw InvalidArgument(fmt::format("--layer {}: {} has experts in {} layers, from {} to {}",
                                      *options.layer, options.model, layers.size(), layers.front(),
                                      layers.back()));
  }
  return *options.layer;
}

// One warm-up call, then --repeat timed ones.
void time_calls(const RunOptions& options,
                MoeLayer& layer,
                const Tensor& output,
                const Stream& stream,
                RunResult& result) {
  WorkspacePool workspaces;
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  layer.forward(result.input.hidden, output, context);

  std::vector<double> calls;
  std::map<std::string, std::vector<double>> stages;
  std::vector<std::string> order;
  Profile profile;
  context.profile = &profile;
  for (int i = 0; i < options.repeat; ++i) {
    profile.clear();
    const auto start = Clock::now();
    layer.forward(result.input.hidden, output, context);
    calls.push_back(microseconds(Clock::now() - start));
    for (const Profile::Stage& stage : profile.stages()) {
      if (stages[stage.name].empty()) {
        order.push_back(stage.name);
      }
      stages[stage.name].push_back(microseconds(stage.total));
    }
  }
  result.call_us = median(calls);
  for (const std::string& name : order) {
    result.stages_us.emplace_back(name, median(stages[name]));
  }
  result.workspace_bytes = workspaces.bytes();
  result.expert_load = layer.expert_load();
}

// A router refuses NaN by place; here the model and the layer are known too.
void expect_router_fits(const RunOptions& options, int64_t layer, const MoeLayerWeights& weights) {
  try {
    const Router router(weights.router_config, weights.router);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("{}: router of layer {}: {}", options.model, layer, error.what()));
  }
}

MoeLayerOptions layer_options(const RunOptions& options) {
  MoeLayerOptions chosen;
  chosen.format =
      options.format == "batched" ? ActivationFormat::kBatched : ActivationFormat::kStandard;
  chosen.experts = options.experts;
  chosen.chunk_tokens = options.chunk_tokens;
  return chosen;
}

}  // namespace

int run(const RunOptions& options) {
  refuse_not_built(options);
  expect_outputs_writable(options);
  const Progress progress;
  RunResult result;

  progress.show("loading");
  const auto load_start = Clock::now();
  const Checkpoint checkpoint(options.model);
  result.model = checkpoint.info();
  result.layer = choose_layer(options, result.model);
  result.block = checkpoint.block_prefix(result.layer);
  LoadOptions load;
  load.quant = options.quant;
  MoeLayerWeights weights = checkpoint.load_layer(result.layer, load);
  expect_router_fits(options, result.layer, weights);
  result.input = load_input(options, weights.config.hidden, weights.config.in_dtype);
  result.cost = layer_cost(weights);
  result.quantization = describe(weights.experts.quant);
  const Stream stream = Stream::cpu(options.threads);
  result.threads = stream.num_threads();
  MoeLayer layer(std::move(weights), layer_options(options), stream);
  result.load_us = microseconds(Clock::now() - load_start);
  result.implementations = {
      {"router", std::string(layer.router().implementation())},
      {"prepare", std::string(layer.kernel().prepare_finalize().name())},
      {"experts", std::string(layer.kernel().experts().implementation())},
      {"quant", std::string(quant::select_quant_impl().name)},
  };

  progress.show("running");
  const Tensor output = Tensor::empty(result.input.hidden.shape(), DType::kF32);
  time_calls(options, layer, output, stream, result);
  result.peak_bytes = peak_memory_bytes();  // before the reference takes its own

  if (options.check) {
    progress.show("checking");
    result.check = check_layer(checkpoint, result.layer, load, result.input.hidden, output, stream);
  }
  if (!options.output.empty()) {
    write_safetensors(options.output, {{"output", output}});
  }
  const Report report = make_report(options, result);
  write_text(options.json, report.json().dump(2) + "\n");
  progress.clear();
  fmt::print("{}", report.text());
  return result.check && !result.check->passed() ? kCheckFailed : kOk;
}

}  // namespace moebius::app
