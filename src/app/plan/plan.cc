// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "app/bench/harness.h"
#include "app/bench/machine_peak.h"
#include "app/commands.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/plan/plan_report.h"
#include "app/progress.h"
#include "app/run/rank_run.h"
#include "checkpoint/model_files.h"
#include "moebius/error.h"
#include "moebius/stream.h"
#include "plan/formats.h"

namespace moebius::app {

namespace {

plan::Machine measure_machine() {
  // Experts with many rows reach this share of the processor's peak: 1 / 1.66, see
  // docs/performance.md.
  constexpr double kShareOfPeak = 0.6;
  constexpr const char* kFromPeak = "0.6 of the measured peak";
  constexpr const char* kAsBf16 = "as bf16: 0.6 of the measured peak";
  const Progress progress;
  progress.show("measuring this machine");
  const Stream stream = Stream::cpu();
  plan::Machine m = plan::find_machine("cpu");
  m.name = "here";
  m.description = fmt::format("{}, {} threads", cpu_model(), stream.num_threads());
  // The values of "cpu" are those of another machine.
  for (const plan::MachineFigure& f : plan::machine_figures()) {
    (m.*f.figure).source = "assumed";
  }
  const auto products = [&](bench::Operand operand) {
    return plan::Given{kShareOfPeak * bench::compute_peak(operand, stream).gflops * 1e-3,
                       kFromPeak};
  };
  m.memory_gb = {static_cast<double>(memory_bytes()) * 1e-9, "measured"};
  m.f32_tflops = products(bench::Operand::kF32);
  m.bf16_tflops = products(bench::Operand::kBF16);
  m.fp8_tflops = m.decoded_tflops = m.registers_tflops = m.coded_tflops =
      m.router_tflops = {m.bf16_tflops.value, kAsBf16};
  m.int8_tflops = products(bench::Operand::kInt8);
  m.weight_gb_per_s = {bench::read_gb_per_s(stream), "measured"};
  m.copy_gb_per_s = {bench::memcpy_gb_per_s(stream), "measured"};
  return m;
}

bool is_file(const std::string& machine) {
  return machine.ends_with(".json");
}

std::vector<std::filesystem::path> files_of(const PlanOptions& o) {
  std::vector<std::filesystem::path> files;
  if (!o.model.empty()) {
    files = checkpoint::model_files(o.model);
  }
  if (is_file(o.machine)) {
    files.emplace_back(o.machine);
  }
  return files;
}

plan::Machine machine_of(const PlanOptions& o) {
  plan::Machine machine = o.machine == "here"  ? measure_machine()
                          : is_file(o.machine) ? plan::read_machine(o.machine)
                                               : plan::find_machine(o.machine);
  const auto give = [](const std::optional<double>& value, plan::Given& figure) {
    if (value) {
      figure = {*value, "given"};
    }
  };
  give(o.link_gb_per_s, machine.link_gb_per_s);
  give(o.link_latency_us, machine.link_us);
  give(o.node_gb_per_s, machine.node_gb_per_s);
  give(o.node_latency_us, machine.node_us);
  give(o.memory_gb, machine.memory_gb);
  give(o.memory_gb_per_s, machine.weight_gb_per_s);
  for (plan::Given* rate :
       {&machine.f32_tflops, &machine.bf16_tflops, &machine.fp8_tflops, &machine.int8_tflops,
        &machine.decoded_tflops, &machine.registers_tflops, &machine.coded_tflops}) {
    give(o.tflops, *rate);
  }
  plan::expect_valid(machine);
  return machine;
}

plan::Deployment deployment_of(const PlanOptions& o, const plan::Machine& machine) {
  if (o.preset.empty() == o.model.empty()) {
    throw InvalidArgument(o.preset.empty()
                              ? "plan needs --preset or --model (see moebius plan --help)"
                              : "--preset and --model exclude each other");
  }
  plan::Deployment d;
  checkpoint::WeightScheme stored;
  d.layer =
      o.model.empty() ? plan::layer_of_preset(o.preset) : plan::layer_of_model(o.model, &stored);
  if (o.ungrouped) {
    d.layer.routing.num_groups = d.layer.routing.topk_groups = 1;
  }
  d.layer.routing.skew = o.skew;
  d.ranks = o.ranks;
  d.tp = o.tp;
  d.shards_experts = o.no_ep && (o.ranks > 1 || o.sweep == "ranks");
  d.device = machine.type == DeviceType::kCuda ? Device::cuda(0) : Device::cpu();
  constexpr int kGpusOfANode = 8;
  d.ranks_per_node =
      o.ranks_per_node > 0 ? o.ranks_per_node : (d.device.is_cuda() ? kGpusOfANode : 0);
  d.tokens = o.tokens;
  d.microbatches = o.microbatches;
  d.low_latency_sum = low_latency_sum_of(o.sum);
  d.redundant_experts = o.redundant_experts;
  d.layers = o.layers > 0 ? o.layers : d.layer.num_moe_layers;
  plan::expect_valid(d);
  d.formats = o.quant == "auto" || o.quant == "none"
                  ? plan::stored_formats(stored, /*quantize_activations=*/o.quant == "auto")
                  : plan::find_formats(o.quant, d.layer);
  plan::expect_valid(d);
  return d;
}

}  // namespace

int run_subcommand(const PlanOptions& options) {
  expect_writable("--json", options.json);
  expect_not_read("--json", options.json, files_of(options));
  constexpr int64_t kLastTokens = 16384;
  constexpr int kLastRanks = 2048;
  PlanResult result;
  result.machine = machine_of(options);
  result.deployment = deployment_of(options, result.machine);
  result.forecasts = plan::forecast_all(result.deployment, result.machine);
  result.sweep = options.sweep;
  if (options.sweep == "tokens") {
    result.rows = plan::sweep_tokens(result.deployment, result.machine, kLastTokens);
  } else if (options.sweep == "ranks") {
    result.rows = plan::sweep_ranks(result.deployment, result.machine, kLastRanks);
  }
  const Report report = make_report(result);
  write_text(options.json, json_text(report.json(), 2) + "\n");
  fmt::print("{}", report.text());
  return plan::fastest(result.forecasts) != nullptr ? kOk : kCheckFailed;
}

}  // namespace moebius::app
