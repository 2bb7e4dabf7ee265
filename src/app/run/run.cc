// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/progress.h"
#include "app/report/page.h"
#include "app/report/roofline.h"
#include "app/report/trace.h"
#include "app/run/agreement.h"
#include "app/run/all_layers.h"
#include "app/run/layer_input.h"
#include "app/run/rank_run.h"
#include "app/run/run_report.h"
#include "checkpoint/model_files.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"
#include "moebius/version.h"

namespace moebius::app {

namespace {

void expect_outputs_writable(const RunOptions& options) {
  const std::pair<std::string_view, const std::string&> outputs[] = {{"--output", options.output},
                                                                     {"--json", options.json},
                                                                     {"--trace", options.trace},
                                                                     {"--report", options.report}};
  std::vector<std::filesystem::path> inputs = checkpoint::model_files(options.model);
  inputs.emplace_back(options.input);
  for (const auto& [option, path] : outputs) {
    expect_writable(option, path);
    expect_not_read(option, path, inputs);
    for (const auto& [other, other_path] : outputs) {
      if (option != other && is_same_file(path, other_path)) {
        throw InvalidArgument(fmt::format("{} and {} are both {}", other, option, path));
      }
    }
  }
}

void expect_page(const RunOptions& options) {
  if (const Support page = has_page(); !options.report.empty() && !page) {
    throw Unsupported(fmt::format("--report {}: {}", options.report, page.reason));
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

// Fills in the figures of all ranks together.  The time of a call is that of the slowest rank.
void summarize_ranks(LayerRun run, RunResult& result) {
  for (const RankFigures& rank : run.ranks) {
    result.call_us = std::max(result.call_us, rank.call_us);
    result.waited_us = std::max(result.waited_us, rank.waited_us);
    result.workspace_bytes += rank.workspace_bytes;
    result.transport_bytes += rank.transport_bytes;
  }
  for (size_t s = 0; s < kStages.size(); ++s) {
    double us = 0;
    for (const RankFigures& rank : run.ranks) {
      us = std::max(us, rank.stage_us[s]);
    }
    if (us > 0) {
      result.stages_us.emplace_back(kStages[s], us);
    }
  }
  run.cost.total_bytes = run.weight_bytes;
  if (!result.plan.use_ep) {  // each rank has a part of every expert
    run.cost.expert_bytes *= result.plan.ranks;
  }
  result.run = std::move(run);
}

std::string trace_of(const RunOptions& options, const RunResult& result) {
  std::vector<std::string> ranks;
  for (size_t r = 0; r < result.run.ranks.size(); ++r) {
    ranks.push_back(fmt::format("rank {} (node {})", r, result.run.ranks[r].node));
  }
  return trace_text(result.run.trace, ranks,
                    {{"moebius", std::string(version())},
                     {"commit", std::string(commit())},
                     {"model", options.model},
                     {"layer", std::to_string(result.layer)},
                     {"device", result.run.device},
                     {"all2all", std::string(name(result.plan.backend))}});
}

}  // namespace

int run_subcommand(const RunOptions& options) {
  expect_launcher(options);
  expect_device(options);
  expect_outputs_writable(options);
  expect_page(options);
  if (options.all_layers) {
    return run_all_layers(options);
  }
  const Progress progress;
  RunResult result;
  bool reports = true;  // false in processes of other ranks than 0

  progress.show("loading");
  const Checkpoint checkpoint(options.model);
  result.model = checkpoint.info();
  result.layer = choose_layer(options, result.model);
  result.block = checkpoint.block_prefix(result.layer);
  result.input = load_input(options, result.model.hidden, result.model.dtype);
  progress.show("running");
  const auto agree = [&](const RankPlan& plan, Group& group) {
    expect_agreement(agreed_values(options, plan, checkpoint, result.layer, result.input), group);
  };
  run_ranks(options, agree, [&](const RankPlan& plan, Group* group) {
    LayerRun rank_run =
        run_layer(options, checkpoint, result.layer, result.input.hidden, plan, group);
    const bool is_first = group == nullptr || group->rank() == 0;
    std::optional<MachinePeak> machine;
    if (is_first) {
      result.peak_bytes = peak_memory_bytes();  // read before peaks and reference take memory
    }
    if (!options.report.empty()) {
      machine = measure_machine(rank_run.cost, make_stream(options, plan, group), group);
    }
    if (is_first) {
      result.machine = std::move(machine);
      result.plan = plan;
      summarize_ranks(std::move(rank_run), result);
    } else if (!group->shares_address_space()) {
      reports = false;
    }
  });
  if (!reports) {
    return kOk;
  }
  if (options.check) {
    progress.show("checking");
    LoadOptions load;
    load.quant = options.quant;
    result.check = check_layer(checkpoint, result.layer, load, result.input.hidden,
                               result.run.output, Stream::cpu(options.threads));
  }
  if (!options.output.empty()) {
    write_safetensors(link_target(options.output), {{"output", result.run.output}});
  }
  if (!options.trace.empty()) {
    write_text(options.trace, trace_of(options, result));
  }
  const Report report = make_report(options, result);
  write_text(options.json, json_text(report.json(), 2) + "\n");
  if (!options.report.empty()) {
    write_text(options.report, make_page(report.json()));
  }
  progress.clear();
  fmt::print("{}", report.text());
  return result.check && !result.check->passed() ? kCheckFailed : kOk;
}

}  // namespace moebius::app
