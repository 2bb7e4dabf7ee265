// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/build_info.h"
#include "moebius/version.h"
#include "plan/gemm.h"

namespace moebius::app {

namespace {

using plan::Deployment;
using plan::Forecast;
using plan::SweepRow;

Json whole(double bytes) {
  return std::llround(bytes);
}

std::string backend_name(const Forecast& f) {
  return std::string(name(f.backend));
}

void add_subject(Report& report, const PlanResult& r) {
  const Deployment& d = r.deployment;
  const plan::LayerShape& l = d.layer;
  report.line(
      "model", "model",
      "{name}: hidden {hidden}, {num_experts} experts of {intermediate}, top-{topk}, shared "
      "{shared_intermediate}; {layers} layers",
      {{"name", l.name},
       {"hidden", l.hidden},
       {"num_experts", l.routing.num_experts},
       {"intermediate", l.intermediate},
       {"topk", l.routing.topk},
       {"shared_intermediate", l.shared_intermediate},
       {"layers", d.layers},
       {"dtype", std::string(moebius::name(l.dtype))},
       {"quant", d.formats.name}});
  const Topology topology = d.topology();
  report.line(
      "deployment", "ranks",
      d.shards_experts
          ? "{ranks} on {nodes} nodes of {ranks_per_node}, tp {tp}, dp {dp}, {intermediate} of all "
            "{experts_per_rank} experts each; {tokens} tokens per rank, quant {quant}, "
            "{microbatches} micro-batches"
          : "{ranks} on {nodes} nodes of {ranks_per_node}, tp {tp}, dp {dp}, {experts_per_rank} "
            "experts each; {tokens} tokens per rank, quant {quant}, {microbatches} micro-batches",
      {{"ranks", d.ranks},
       {"nodes", topology.num_nodes()},
       {"ranks_per_node", topology.node_size(0)},
       {"tp", d.tp},
       {"dp", d.dp()},
       {"placement", d.shards_experts ? "sharded" : "distributed"},
       {"experts_per_rank", d.places_of(0).size()},
       {"intermediate", d.local_intermediate()},
       {"redundant_experts", d.redundant_experts},
       {"tokens", d.tokens},
       {"quant", d.formats.name},
       {"microbatches", d.microbatches},
       {"sum", d.low_latency_sum == LowLatencySum::kRanks ? "ranks" : "selections"}});
  // The last one, since the copies of all-gather, the first, do not depend on the routing.
  const Forecast& first = r.forecasts.back();
  report.line(
      "routing", "routing",
      "groups {topk_groups} of {num_groups}, skew {skew}; a token goes to {copies} other ranks "
      "and {node_copies} other nodes; fullest rank {rows} rows for {touched} experts",
      {{"num_groups", l.routing.num_groups},
       {"topk_groups", l.routing.topk_groups},
       {"skew", l.routing.skew},
       {"copies", first.copies, Unit::kDecimals},
       {"node_copies", first.node_copies, Unit::kDecimals},
       {"rows", whole(first.rows)},
       {"touched", first.touched, Unit::kDecimals}});
}

void add_machine(Report& report, const plan::Machine& machine) {
  Json figures = Json::array();
  std::string assumed;
  for (const plan::MachineFigure& f : plan::machine_figures()) {
    const plan::Given& given = machine.*f.figure;
    figures.push_back({{"figure", f.key}, {"value", given.value}, {"source", given.source}});
    if (given.source == "assumed") {
      assumed += fmt::format("{}{} {:g}", assumed.empty() ? "" : ", ", f.key, given.value);
    }
  }
  report.line("machine", "machine", "{name}: {description}",
              {{"name", machine.name}, {"description", machine.description}});
  report.line("machine", "assumed", "{assumed}",
              {{"assumed", assumed.empty() ? "nothing" : assumed}});
  report.hidden("machine", {"figures", figures});
}

// Reports which kernels multiply on a GPU, for the rows of the fullest rank.
void add_gemms(Report& report, const PlanResult& r) {
  const Deployment& d = r.deployment;
  const Forecast& first = r.forecasts.back();
  if (!d.device.is_cuda() || first.touched <= 0) {
    return;
  }
  const int64_t num_experts = d.places_of(0).size();
  const auto [gemm1, gemm2] =
      plan::gemm_lines(d, num_experts, first.rows / static_cast<double>(num_experts));
  report.line("gemms", "gemm1", "{gemm1}", {{"gemm1", gemm1}});
  report.line("gemms", "gemm2", "{gemm2}", {{"gemm2", gemm2}});
}

void add_bytes(Report& report, const PlanResult& r) {
  std::vector<std::vector<Json>> rows;
  for (const Forecast& f : r.forecasts) {
    const plan::RankTraffic& t = f.traffic;
    rows.push_back({backend_name(f), f.copies, f.node_copies, whole(t.dispatch.intra_out),
                    whole(t.dispatch.inter_out), whole(t.combine.intra_out),
                    whole(t.combine.inter_out), whole(t.control_intra + t.control_inter),
                    whole(t.intra_out()), whole(t.inter_out())});
  }
  report.heading("bytes that the busiest rank sends in a call, own rank excluded");
  report.table("bytes", "backends",
               {{"backend", "backend"},
                {"copies_per_token", "copies", Unit::kDecimals},
                {"node_copies_per_token", "nodes", Unit::kDecimals},
                {"dispatch_intra_node_bytes", "dispatch in node", Unit::kBytes},
                {"dispatch_inter_node_bytes", "between", Unit::kBytes},
                {"combine_intra_node_bytes", "combine in node", Unit::kBytes},
                {"combine_inter_node_bytes", "between", Unit::kBytes},
                {"control_bytes", "hosts", Unit::kBytes},
                {"intra_node_bytes", "all in node", Unit::kBytes},
                {"inter_node_bytes", "between", Unit::kBytes}},
               rows);
}

void add_buffers(Report& report, const PlanResult& r) {
  const int64_t layers = r.deployment.layers;
  std::vector<std::vector<Json>> rows;
  for (const Forecast& f : r.forecasts) {
    const plan::Buffers& b = f.buffers;
    rows.push_back({backend_name(f), layers * b.weights, b.windows, b.outputs, b.workspaces,
                    b.total(layers), whole(f.memory),
                    static_cast<double>(b.total(layers)) / f.memory, f.fits ? "yes" : "no"});
  }
  report.heading(
      "memory of a rank, all layers; without attention, KV cache and the rest of a model");
  report.table("buffers", "backends",
               {{"backend", "backend"},
                {"weight_bytes", "weights", Unit::kBytes},
                {"window_bytes", "windows", Unit::kBytes},
                {"output_bytes", "received rows", Unit::kBytes},
                {"workspace_bytes", "workspaces", Unit::kBytes},
                {"total_bytes", "total", Unit::kBytes},
                {"memory_bytes", "there is", Unit::kBytes},
                {"of_memory", "share", Unit::kPercent},
                {"fits", "fits"}},
               rows);
}

std::string note(const Forecast& f) {
  if (!f.support.ok) {
    return fmt::format("refused: {}", f.support.reason);
  }
  std::string text = f.fits ? "" : "does not fit";
  const auto add = [&](const std::string& more) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", more);
  };
  if (f.pieces > 1) {
    add(fmt::format("in {} pieces", f.pieces));
  }
  if (f.is_beyond_kernels) {
    add("more ranks than its kernels take today");
  }
  return text;
}

void add_times(Report& report, const PlanResult& r) {
  std::vector<std::vector<Json>> rows;
  for (const Forecast& f : r.forecasts) {
    rows.push_back({backend_name(f), f.router, f.prepare, f.experts, f.finalize, f.shared, f.call,
                    f.line.travelled, f.line.waited, f.line.hidden_share(), f.microbatches,
                    f.pieces, note(f)});
  }
  report.heading("time of a call on the slowest rank, one layer");
  report.table("time", "backends",
               {{"backend", "backend"},
                {"router_us", "router", Unit::kMicros},
                {"prepare_us", "prepare", Unit::kMicros},
                {"experts_us", "experts", Unit::kMicros},
                {"finalize_us", "finalize", Unit::kMicros},
                {"shared_us", "shared", Unit::kMicros},
                {"call_us", "call", Unit::kMicros},
                {"travel_us", "travel", Unit::kMicros},
                {"waited_us", "waited", Unit::kMicros},
                {"hidden_share", "hidden", Unit::kPercent},
                {"microbatches", "parts"},
                {"pieces", "pieces"},
                {"note", "note"}},
               rows);
}

void add_choice(Report& report, const PlanResult& r) {
  const Forecast* best = plan::fastest(r.forecasts);
  if (best != nullptr) {
    const double tokens =
        static_cast<double>(r.deployment.tokens) * r.deployment.dp() / best->call * 1e6;
    report.line("choice", "choice", "{all2all}: {call_us} per call, {tokens_per_second} in all",
                {{"all2all", backend_name(*best)},
                 {"call_us", best->call, Unit::kMicros},
                 {"tokens_per_second", tokens, Unit::kTokensPerSecond}});
    return;
  }
  const auto total = [&](const Forecast& f) { return f.buffers.total(r.deployment.layers); };
  const Forecast* least = nullptr;  // of the backends that are not refused; none of them fits
  for (const Forecast& f : r.forecasts) {
    if (f.support.ok && (least == nullptr || total(f) < total(*least))) {
      least = &f;
    }
  }
  if (least == nullptr) {
    report.line("choice", "choice", "none works: all are refused", {{"all2all", Json()}});
    return;
  }
  report.line(
      "choice", "choice",
      "none works: the least is {total_bytes} per rank ({least}), of which {weight_bytes} are "
      "weights, and there is {memory_bytes}",
      {{"all2all", Json()},
       {"least", backend_name(*least)},
       {"total_bytes", total(*least), Unit::kBytes},
       {"weight_bytes", r.deployment.layers * least->buffers.weights, Unit::kBytes},
       {"memory_bytes", whole(least->memory), Unit::kBytes}});
}

const Forecast* find(const SweepRow& row, All2AllBackend backend) {
  for (const Forecast& f : row.forecasts) {
    if (f.backend == backend && f.support.ok) {
      return &f;
    }
  }
  return nullptr;
}

// Reports which backend is the fastest from which number of tokens or ranks on.
void add_turns(Report& report, const std::vector<SweepRow>& rows, bool by_tokens) {
  std::string text;
  Json turns = Json::array();
  for (const SweepRow& row : rows) {
    const Forecast* best = plan::fastest(row.forecasts);
    const std::string now = best == nullptr ? "none" : backend_name(*best);
    if (turns.empty() || turns.back()["best"] != now) {
      const int64_t from = by_tokens ? row.deployment.tokens : row.deployment.ranks;
      text += fmt::format("{}{} from {}", text.empty() ? "" : ", ", now, from);
      turns.push_back({{"best", now}, {"from", from}});
    }
  }
  report.line("sweep", "fastest", "{fastest} {by}",
              {{"fastest", text}, {"by", by_tokens ? "tokens" : "ranks"}});
  report.hidden("sweep", {"turns", turns});
}

void add_sweep(Report& report, const PlanResult& r) {
  const bool by_tokens = r.sweep == "tokens";
  constexpr All2AllBackend kBackends[] = {
      All2AllBackend::kNone, All2AllBackend::kAllGatherReduceScatter,
      All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency};
  const auto is_compared = [&](All2AllBackend backend) {
    return std::any_of(r.rows.begin(), r.rows.end(), [&](const SweepRow& row) {
      return std::any_of(row.forecasts.begin(), row.forecasts.end(),
                         [&](const Forecast& f) { return f.backend == backend; });
    });
  };
  std::vector<Column> columns = {{by_tokens ? "tokens" : "ranks", by_tokens ? "tokens" : "ranks"},
                                 {"nodes", "nodes"},
                                 {"experts_per_rank", "experts"},
                                 {"redundant_experts", "redundant"}};
  for (const All2AllBackend backend : kBackends) {
    if (is_compared(backend)) {
      columns.push_back({name(backend), name(backend), Unit::kMicros});
    }
  }
  columns.push_back({"best", "best"});
  columns.push_back({"no_room", "no room for"});
  std::vector<std::vector<Json>> rows;
  for (const SweepRow& row : r.rows) {
    const Deployment& d = row.deployment;
    std::vector<Json> cells = {by_tokens ? Json(d.tokens) : Json(d.ranks), d.topology().num_nodes(),
                               d.places_of(0).size(), d.redundant_experts};
    std::string no_room;
    for (const All2AllBackend backend : kBackends) {
      if (!is_compared(backend)) {
        continue;
      }
      const Forecast* f = find(row, backend);
      cells.push_back(f == nullptr ? Json() : Json(f->call));
      if (f != nullptr && !f->fits) {
        no_room += fmt::format("{}{}", no_room.empty() ? "" : " ", name(backend));
      }
    }
    const Forecast* best = plan::fastest(row.forecasts);
    cells.push_back(best == nullptr ? Json("none") : Json(backend_name(*best)));
    cells.push_back(no_room);
    rows.push_back(std::move(cells));
  }
  report.heading(by_tokens ? "calls by tokens per rank" : "calls by ranks");
  report.table("sweep", "rows", columns, rows);
  const bool is_beyond = std::any_of(r.rows.begin(), r.rows.end(), [](const SweepRow& row) {
    return row.deployment.redundant_experts > 0 || row.forecasts.back().is_beyond_kernels;
  });
  if (is_beyond) {
    report.line(
        "sweep", "beyond", "{beyond}",
        {{"beyond", "redundant experts, and more than 64 GPUs, are not built yet: forecasts"}});
  }
  add_turns(report, r.rows, by_tokens);
}

// Reports at which number of tokens high throughput overtakes low latency, and whether both have
// room there.
void add_crossover(Report& report, const PlanResult& r) {
  if (r.deployment.ranks == 1 || r.sweep != "tokens") {
    return;
  }
  if (find(r.rows.back(), All2AllBackend::kLowLatency) == nullptr) {  // experts are sharded
    return;
  }
  const int64_t last = r.rows.back().deployment.tokens;
  const auto at = plan::crossover_tokens(r.deployment, r.machine, All2AllBackend::kLowLatency,
                                         All2AllBackend::kHighThroughput, 1, last);
  Deployment d = r.deployment;
  d.tokens = at.value_or(last);
  std::string no_room;
  for (const auto backend : {All2AllBackend::kLowLatency, All2AllBackend::kHighThroughput}) {
    if (!plan::forecast(backend, d, r.machine).fits) {
      no_room += fmt::format("{}{}", no_room.empty() ? "" : " and ", name(backend));
    }
  }
  std::string text =
      !at        ? "low_latency stays faster than high_throughput up to {last_tokens} tokens"
      : *at == 1 ? "high_throughput is faster than low_latency from 1 token on"
                 : "high_throughput overtakes low_latency at {crossover_tokens} tokens per rank";
  if (!no_room.empty()) {
    text += "; no room for {crossover_no_room}";
  }
  report.line("sweep", "crossover", text,
              {{"crossover_tokens", at ? Json(*at) : Json()},
               {"last_tokens", last},
               {"crossover_no_room", no_room}});
}

}  // namespace

Report make_report(const PlanResult& r) {
  Report report;
  report.hidden("moebius", {"command", "plan"});
  report.hidden("moebius", {"version", std::string(version())});
  report.hidden("moebius", {"commit", std::string(commit())});
  add_subject(report, r);
  add_machine(report, r.machine);
  add_gemms(report, r);
  add_bytes(report, r);
  add_buffers(report, r);
  add_times(report, r);
  add_choice(report, r);
  if (!r.sweep.empty()) {
    add_sweep(report, r);
    add_crossover(report, r);
  }
  return report;
}

}  // namespace moebius::app
