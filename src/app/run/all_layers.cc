// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/all_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/progress.h"
#include "app/report/report.h"
#include "app/run/agreement.h"
#include "app/run/layer_input.h"
#include "app/run/rank_run.h"
#include "app/run/reference_check.h"
#include "app/run/subject.h"
#include "moebius/error.h"
#include "moebius/version.h"

namespace moebius::app {

namespace {

struct LayerRow {
  int64_t layer = 0;
  std::string format;
  int64_t read_bytes = 0;
  int64_t disk_bytes = 0;
  int64_t weight_bytes = 0;
  double load_us = 0;
  double call_us = 0;  // of the slowest rank
  double norm = 0;     // of the whole output
  Tensor output;       // until it is checked
  std::optional<CheckResult> check;

  bool is_ok() const { return std::isfinite(norm) && (!check || check->passed()); }
};

// The square root of the sum of squares.  values: f32.
double norm_of(const Tensor& values) {
  const float* v = values.data<float>();
  double sum = 0;
  for (int64_t i = 0; i < values.numel(); ++i) {
    sum += static_cast<double>(v[i]) * v[i];
  }
  return std::sqrt(sum);
}

LayerRow make_row(int64_t layer, const LayerRun& run, int64_t read_before) {
  LayerRow row;
  row.layer = layer;
  row.format = run.weight_format;
  row.read_bytes = run.read_so_far - read_before;
  row.disk_bytes = run.disk_bytes;
  row.weight_bytes = run.weight_bytes;
  row.load_us = run.load_us;
  for (const RankFigures& rank : run.ranks) {
    row.call_us = std::max(row.call_us, rank.call_us);
  }
  row.norm = norm_of(run.output);
  row.output = run.output;
  return row;
}

// What rank 0 knows at the end.
struct AllLayers {
  LayerInput input;
  std::optional<LayerRun> first;  // without its output
  std::vector<LayerRow> rows;
  int64_t peak_bytes = 0;  // before anything is checked
};

void add_table(Report& report, const AllLayers& all, bool checks) {
  std::vector<Column> columns = {{"layer", "layer"},
                                 {"format", "format"},
                                 {"read_bytes", "read", Unit::kBytes},
                                 {"disk_bytes", "from disk", Unit::kBytes},
                                 {"load_us", "load", Unit::kMicros},
                                 {"call_us", "call", Unit::kMicros},
                                 {"norm", "norm", Unit::kDecimals}};
  if (checks) {
    columns.insert(columns.end(), {{"error", "error", Unit::kSmall},
                                   {"tolerance", "tolerance", Unit::kSmall},
                                   {"check", "check"}});
  }
  std::vector<std::vector<Json>> rows;
  for (const LayerRow& row : all.rows) {
    std::vector<Json> cells = {row.layer,   row.format,  row.read_bytes,          row.disk_bytes,
                               row.load_us, row.call_us, finite_or_text(row.norm)};
    if (checks) {
      cells.insert(cells.end(), {finite_or_text(row.check->error), row.check->tolerance,
                                 row.check->passed() ? "ok" : "FAILED"});
    }
    rows.push_back(std::move(cells));
  }
  report.heading("layers");
  report.table("layers", "layers", columns, rows);
}

Report make_report(const RunOptions& options, const ModelInfo& model, const AllLayers& all) {
  LayerRow sum;
  int64_t num_ok = 0;
  for (const LayerRow& row : all.rows) {
    sum.read_bytes += row.read_bytes;
    sum.disk_bytes += row.disk_bytes;
    sum.load_us += row.load_us;
    sum.call_us += row.call_us;
    sum.weight_bytes = std::max(sum.weight_bytes, row.weight_bytes);
    num_ok += row.is_ok();
  }
  Report report;
  report.hidden("moebius", {"command", "run"});
  report.hidden("moebius", {"version", std::string(version())});
  report.hidden("moebius", {"commit", std::string(commit())});
  report.hidden("moebius", {"cpu", cpu_model()});
  report.line("model", "model",
              "{directory} ({family}), {num_moe_layers} layers with experts of {num_layers}",
              {{"directory", options.model},
               {"family", model.family},
               {"num_moe_layers", model.moe_layers.size()},
               {"num_layers", model.num_layers}});
  add_shape(report, model);
  add_quantization(report, options, model, *all.first);
  add_input(report, options, all.input);
  add_implementations(report, options, *all.first);
  report.line("time", "time", "{call_us} per call of all layers (medians of {repeat})",
              {{"call_us", sum.call_us, Unit::kMicros}, {"repeat", options.repeat}});
  report.line("loading", "loading",
              "{read_bytes} read in {load_us}, {disk_bytes} of them from the disk",
              {{"read_bytes", sum.read_bytes, Unit::kBytes},
               {"load_us", sum.load_us, Unit::kMicros},
               {"disk_bytes", sum.disk_bytes, Unit::kBytes}});
  report.line("memory", "memory",
              "peak {peak_bytes}; the weights of the largest layer are "
              "{largest_layer_bytes}",
              {{"peak_bytes", all.peak_bytes, Unit::kBytes},
               {"largest_layer_bytes", sum.weight_bytes, Unit::kBytes}});
  report.line("layers", "result", "{num_ok} of {num_layers} layers are ok",
              {{"num_ok", num_ok}, {"num_layers", all.rows.size()}});
  add_table(report, all, options.check);
  return report;
}

}  // namespace

int run_all_layers(const RunOptions& options) {
  const Progress progress;
  progress.show("loading");
  const Checkpoint checkpoint(options.model);
  const ModelInfo& model = checkpoint.info();
  const std::vector<int64_t>& layers = model.moe_layers;
  const auto num_layers = static_cast<int64_t>(layers.size());
  if (layers.empty()) {
    throw InvalidArgument(
        fmt::format("{}: none of its {} layers has experts", options.model, model.num_layers));
  }
  AllLayers all;
  bool reports = true;  // false in processes of other ranks than 0
  all.input = load_input(options, model.hidden, model.dtype);
  const auto agree = [&](const RankPlan& plan, Group& group) {
    expect_agreement(agreed_values(options, plan, checkpoint, layers.front(), all.input), group);
  };
  run_ranks(options, agree, [&](const RankPlan& plan, Group* group) {
    const bool is_first = group == nullptr || group->rank() == 0;
    int64_t read_before = 0;
    for (int64_t i = 0; i < num_layers; ++i) {
      const int64_t layer = layers[static_cast<size_t>(i)];
      if (is_first) {
        progress.show(fmt::format("layer {}", layer), i, num_layers);
      }
      LayerRun run = run_layer(options, checkpoint, layer, all.input.hidden, plan, group);
      if (!is_first) {
        continue;
      }
      all.rows.push_back(make_row(layer, run, std::exchange(read_before, run.read_so_far)));
      if (!options.check) {
        all.rows.back().output = {};
      }
      run.output = {};
      if (!all.first) {
        all.first = std::move(run);
      }
    }
    if (is_first) {
      all.peak_bytes = peak_memory_bytes();
    } else if (!group->shares_address_space()) {
      reports = false;
    }
  });
  if (!reports) {
    return kOk;
  }
  for (int64_t i = 0; options.check && i < num_layers; ++i) {
    LayerRow& row = all.rows[static_cast<size_t>(i)];
    progress.show(fmt::format("checking layer {}", row.layer), i, num_layers);
    LoadOptions load;
    load.quant = options.quant;
    row.check = check_layer(checkpoint, row.layer, load, all.input.hidden, row.output,
                            Stream::cpu(options.threads));
    row.output = {};
  }
  const Report report = make_report(options, model, all);
  write_text(options.json, json_text(report.json(), 2) + "\n");
  progress.clear();
  fmt::print("{}", report.text());
  const bool is_ok = std::all_of(all.rows.begin(), all.rows.end(),
                                 [](const LayerRow& row) { return row.is_ok(); });
  return is_ok ? kOk : kCheckFailed;
}

}  // namespace moebius::app
