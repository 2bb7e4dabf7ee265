// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/run_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/build_info.h"
#include "app/machine.h"
#include "app/run/subject.h"
#include "moebius/version.h"

namespace moebius::app {

namespace {

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Draws one character per expert, or per few of them where there are more than 64.  It shows the
// number of rows relative to that of the fullest expert.
std::string load_bar(const Tensor& load, int64_t max) {
  constexpr std::string_view kLevels = " .:-=+*#%@";
  constexpr int64_t kWidth = 64;
  const int64_t per_char = (load.numel() + kWidth - 1) / kWidth;
  std::string bar;
  for (int64_t begin = 0; begin < load.numel(); begin += per_char) {
    const int64_t* first = load.data<int64_t>() + begin;
    const int64_t fullest =
        *std::max_element(first, first + std::min(per_char, load.numel() - begin));
    const int64_t last_level = static_cast<int64_t>(kLevels.size()) - 1;
    // The level is rounded up, so that only idle experts are blank.
    bar += kLevels[static_cast<size_t>(max > 0 ? (fullest * last_level + max - 1) / max : 0)];
  }
  return bar;
}

void add_subject(Report& report, const RunOptions& options, const RunResult& r) {
  report.line("model", "model", "{directory} ({family}), layer {layer} of {num_layers}",
              {{"directory", options.model},
               {"family", r.model.family},
               {"layer", r.layer},
               {"num_layers", r.model.num_layers},
               {"block", r.block}});
  add_shape(report, r.model);
  add_quantization(report, options, r.model, r.run);
  add_input(report, options, r.input);
  add_implementations(report, options, r.run);
}

void add_speed(Report& report, const RunOptions& options, const RunResult& r) {
  const LoadSummary load = summarize_load(r.run.expert_load);
  const int64_t tokens = r.input.hidden.dim(0);
  const double seconds = std::max(r.call_us, 1e-3) * 1e-6;
  const auto [flops, bytes] = call_work(r.run.cost, r.run.expert_load, tokens).all();

  report.line("time", "time",
              options.graph ? "{call_us} per replay (median of {repeat}), loaded in {load_us}"
                            : "{call_us} per call (median of {repeat}), loaded in {load_us}",
              {{"call_us", r.call_us, Unit::kMicros},
               {"repeat", options.repeat},
               {"graph", options.graph},
               {"load_us", r.run.load_us, Unit::kMicros}});
  report.line("loading", "loading", "{read_bytes} read, {disk_bytes} of them from the disk",
              {{"read_bytes", r.run.read_so_far, Unit::kBytes},
               {"disk_bytes", r.run.disk_bytes, Unit::kBytes}});
  std::vector<std::vector<Json>> rows;
  for (const auto& [stage, us] : r.stages_us) {
    rows.push_back({stage, us, us / std::max(r.call_us, 1e-3)});
  }
  report.table(
      "time", "stages",
      {{"stage", "stage"}, {"us", "time", Unit::kMicros}, {"share", "share", Unit::kPercent}},
      rows);
  report.line("throughput", "throughput",
              "{tokens_per_second}, {gflops}, weights at {weight_gb_per_s}",
              {{"tokens_per_second", static_cast<double>(tokens) / seconds, Unit::kTokensPerSecond},
               {"gflops", static_cast<double>(flops) / seconds * 1e-9, Unit::kGflops},
               {"flops", flops},
               {"weight_gb_per_s", static_cast<double>(bytes) / seconds * 1e-9,
                Unit::kGigabytesPerSecond}});
  report.line("memory", "weights", "{touched_bytes} touched per call, of {weight_bytes}",
              {{"touched_bytes", bytes, Unit::kBytes},
               {"weight_bytes", r.run.cost.total_bytes, Unit::kBytes}});
  report.line("memory", "memory",
              "peak {peak_bytes}, {peak_over_weights} x weights; workspaces {workspace_bytes}, "
              "transports {transport_bytes}",
              {{"peak_bytes", r.peak_bytes, Unit::kBytes},
               {"peak_over_weights", ratio(r.peak_bytes, r.run.cost.total_bytes), Unit::kDecimals},
               {"workspace_bytes", r.workspace_bytes, Unit::kBytes},
               {"transport_bytes", r.transport_bytes, Unit::kBytes}});

  const int64_t* counts = r.run.expert_load.data<int64_t>();
  report.line("load", "load",
              "{rows} rows; per expert max {max}, mean {mean}, ratio {max_over_mean}; {idle} of "
              "{num_experts} idle",
              {{"rows", load.rows},
               {"max", load.max},
               {"mean", load.mean, Unit::kDecimals},
               {"max_over_mean", load.mean > 0 ? static_cast<double>(load.max) / load.mean : 0.0,
                Unit::kDecimals},
               {"idle", load.idle},
               {"num_experts", r.run.expert_load.numel()},
               {"per_expert", std::vector<int64_t>(counts, counts + r.run.expert_load.numel())}});
  report.line("load", "", "[{bar}]", {{"bar", load_bar(r.run.expert_load, load.max)}});
}

// Whether rows travel without being counted.  On the GPUs of a node kernels store rows directly at
// their destination.  A host only knows their number where it waits for it, and with low latency or
// with a capacity it does not wait.
bool stores_uncounted(const RunOptions& options, const RunResult& r) {
  const bool one_node = std::all_of(r.run.ranks.begin(), r.run.ranks.end(),
                                    [](const RankFigures& rank) { return rank.node == 0; });
  if (options.device == "cpu" || !one_node) {
    return false;
  }
  return r.plan.backend == All2AllBackend::kLowLatency ||
         capacity_of(options, r.plan.backend, /*num_nodes=*/1).has_value();
}

// Reports what each rank computed, and what it sent for that.
void add_ranks(Report& report, const RunOptions& options, const RunResult& r) {
  if (r.run.ranks.size() == 1 && r.plan.backend == All2AllBackend::kNone) {
    return;
  }
  const bool counts_bytes = !stores_uncounted(options, r);
  const auto bytes = [&](int64_t count) { return counts_bytes ? Json(count) : Json(); };
  const auto on_first_node = std::count_if(r.run.ranks.begin(), r.run.ranks.end(),
                                           [](const RankFigures& rank) { return rank.node == 0; });
  const auto sum = [&](int64_t RankFigures::*figure) {
    int64_t all = 0;
    for (const RankFigures& rank : r.run.ranks) {
      all += rank.*figure;
    }
    return all;
  };
  std::vector<std::vector<Json>> rows;
  for (size_t i = 0; i < r.run.ranks.size(); ++i) {
    const RankFigures& f = r.run.ranks[i];
    std::vector<Json> row = {i,
                             f.node,
                             f.tokens,
                             f.rows,
                             f.num_experts,
                             f.max_expert_rows,
                             ratio(f.rows, f.num_experts),
                             bytes(f.intra_node_bytes),
                             bytes(f.inter_node_bytes),
                             f.call_us,
                             f.waited_us};
    row.insert(row.end(), f.stage_us.begin(), f.stage_us.end());
    rows.push_back(std::move(row));
  }
  report.line("parallel", "parallel",
              "{ranks} ranks ({group}), tp {tp}, dp {dp}, experts {placement}, all2all {all2all}; "
              "sent {intra_node_bytes} within nodes, {inter_node_bytes} between",
              {{"ranks", r.plan.ranks},
               {"group", options.group},
               {"tp", r.plan.tp},
               {"dp", r.plan.dp},
               {"placement", r.plan.use_ep ? "distributed" : "sharded"},
               {"all2all", std::string(name(r.plan.backend))},
               {"monolithic", options.monolithic},
               {"sum", r.plan.backend == All2AllBackend::kLowLatency ? Json(options.sum) : Json()},
               {"ranks_per_node", on_first_node},
               {"intra_node_bytes", bytes(sum(&RankFigures::intra_node_bytes)), Unit::kBytes},
               {"inter_node_bytes", bytes(sum(&RankFigures::inter_node_bytes)), Unit::kBytes}});
  report.line(
      "parallel", "waiting",
      "{waited_us} for other ranks, {waited_share} of the call; {microbatches} of "
      "{asked_microbatches} micro-batches, results in {combine_parts} parts, rows in waves: "
      "{in_waves}",
      {{"waited_us", r.waited_us, Unit::kMicros},
       {"waited_share", r.waited_us / std::max(r.call_us, 1e-3), Unit::kPercent},
       {"microbatches", r.run.microbatches},
       {"asked_microbatches", options.kernel.microbatches},
       {"combine_parts", r.run.combine_parts},
       {"in_waves", r.run.in_waves}});
  if (r.run.ranks.front().copies >= 0) {
    const int64_t selections = sum(&RankFigures::selections);
    const int64_t copies = sum(&RankFigures::copies);
    report.line("parallel", "copies",
                "{copies} rows to ranks for {selections} selections, {copies_per_selection} each; "
                "{node_copies} between nodes",
                {{"copies", copies},
                 {"selections", selections},
                 {"copies_per_selection", ratio(copies, selections), Unit::kDecimals},
                 {"node_copies", sum(&RankFigures::node_copies)}});
  }
  const int64_t max_rows =
      std::max_element(r.run.ranks.begin(), r.run.ranks.end(),
                       [](const RankFigures& a, const RankFigures& b) { return a.rows < b.rows; })
          ->rows;
  const double mean_rows = ratio(sum(&RankFigures::rows), static_cast<int64_t>(r.run.ranks.size()));
  report.line("parallel", "rank load",
              "per rank max {max_rows}, mean {mean_rows}, ratio {imbalance}",
              {{"max_rows", max_rows},
               {"mean_rows", mean_rows, Unit::kDecimals},
               {"imbalance", mean_rows > 0 ? static_cast<double>(max_rows) / mean_rows : 0.0,
                Unit::kDecimals}});
  std::vector<Column> columns = {{"rank", "rank"},
                                 {"node", "node"},
                                 {"tokens", "tokens"},
                                 {"rows", "rows"},
                                 {"num_experts", "local"},
                                 {"max_expert_rows", "fullest"},
                                 {"mean_expert_rows", "mean", Unit::kDecimals},
                                 {"intra_node_bytes", "in node", Unit::kBytes},
                                 {"inter_node_bytes", "between", Unit::kBytes},
                                 {"call_us", "call", Unit::kMicros},
                                 {"waited_us", "waited", Unit::kMicros}};
  for (const std::string_view stage : kStages) {
    columns.push_back({stage, stage, Unit::kMicros});
  }
  report.table("parallel", "per_rank", columns, rows);
  report.hidden("parallel", {"expert_rows", r.run.expert_rows});
  if (counts_bytes) {
    report.hidden("parallel", {"link_bytes", r.run.link_bytes});
  }
}

// Reports how much of the communication computation hides (layer/overlap.h), by rank, and in the
// printed line for the slowest rank.
void add_overlap(Report& report, const RunResult& r) {
  if (r.run.ranks.size() == 1) {
    return;
  }
  const auto share = [](const RankFigures& f) {
    return f.travel_us > 0 ? f.hidden_us / f.travel_us : 0.0;
  };
  const RankFigures& slowest = *std::max_element(
      r.run.ranks.begin(), r.run.ranks.end(),
      [](const RankFigures& a, const RankFigures& b) { return a.call_us < b.call_us; });
  report.line(
      "overlap", "overlap",
      "{hidden_share} of communication hidden: {hidden_us} of {travel_us} that rows travel; "
      "{waited_us} waited (slowest rank)",
      {{"travel_us", slowest.travel_us, Unit::kMicros},
       {"waited_us", slowest.waited_us, Unit::kMicros},
       {"hidden_us", slowest.hidden_us, Unit::kMicros},
       {"hidden_share", share(slowest), Unit::kPercent}});
  std::vector<std::vector<Json>> rows;
  for (size_t i = 0; i < r.run.ranks.size(); ++i) {
    const RankFigures& f = r.run.ranks[i];
    rows.push_back({i, f.travel_us, f.hidden_us, share(f)});
  }
  report.table("overlap", "per_rank",
               {{"rank", "rank"},
                {"travel_us", "travel", Unit::kMicros},
                {"hidden_us", "hidden", Unit::kMicros},
                {"hidden_share", "share", Unit::kPercent}},
               rows);
}

}  // namespace

Report make_report(const RunOptions& options, const RunResult& r) {
  Report report;
  report.hidden("moebius", {"command", "run"});
  report.hidden("moebius", {"version", std::string(version())});
  report.hidden("moebius", {"commit", std::string(commit())});
  report.hidden("moebius", {"cpu", cpu_model()});
  add_subject(report, options, r);
  add_speed(report, options, r);
  add_ranks(report, options, r);
  add_overlap(report, r);
  if (r.machine) {
    add_roofline(report, *r.machine, r);
  }
  if (!options.output.empty()) {
    report.line("output", "output", "{file}, tensor {tensor} [{tokens}, {hidden}] f32",
                {{"file", options.output},
                 {"tensor", "output"},
                 {"tokens", r.input.hidden.dim(0)},
                 {"hidden", r.input.hidden.dim(1)}});
  }
  if (r.check) {
    report.line("check", "check", "{result}: relative error {error}, tolerance {tolerance}",
                {{"result", r.check->passed() ? "ok" : "FAILED"},
                 {"passed", r.check->passed()},
                 {"error", finite_or_text(r.check->error), Unit::kSmall},
                 {"tolerance", r.check->tolerance, Unit::kSmall},
                 {"reference", "float64"}});
    if (!r.check->clipped.empty()) {
      report.line("check", "", "{clipped}", {{"clipped", r.check->clipped}});
    }
  }
  return report;
}

}  // namespace moebius::app
