// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "app/bench/cases.h"
#include "app/build_info.h"
#include "app/commands.h"
#include "app/info/layer_choice.h"
#include "app/info/model.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/progress.h"
#include "app/report/report.h"
#include "checkpoint/model_files.h"
#include "core/cpu_caches.h"
#include "core/cpu_features.h"
#include "experts/cpu/tiles/tile_tuning.h"
#include "moebius/checkpoint.h"
#include "moebius/device.h"
#include "moebius/error.h"
#include "moebius/experts.h"
#include "moebius/settings.h"
#include "moebius/stream.h"
#include "moebius/version.h"
#include "plan/formats.h"
#include "plan/gemm.h"
#include "quant/impls.h"
#include "router/impl.h"

namespace moebius::app {

namespace {

// Rows of stage, implementation, whether this machine accepts it, and why not.
std::vector<std::vector<Json>> implementations() {
  std::vector<std::vector<Json>> rows;
  const auto add = [&](std::string_view stage, std::string_view impl, const Support& support) {
    rows.push_back({stage, impl, support.ok ? "yes" : "no", support.reason});
  };
  for (const quant::Impl& impl : quant::impls()) {
    add("quant", impl.name, impl.supports(cpu_features()));
  }
  router::Model router;
  router.config.num_experts = 8;
  for (const router::ImplEntry& impl : router::impls()) {
    add("router", impl.name, impl.supports(router));
  }
  ExpertsDesc experts;
  experts.num_experts = experts.num_local_experts = 8;
  experts.hidden = experts.intermediate = 128;
  ExpertWeights weights;
  weights.w1 = Tensor::empty({8, 256, 128}, DType::kBF16);
  weights.w2 = Tensor::empty({8, 128, 128}, DType::kBF16);
  for (const ExpertsImpl& impl : experts_impls()) {
    add("experts", impl.name, impl.supports(experts, weights));
  }
  return rows;
}

// Names the GEMM1 that multiplies `rows` rows of each expert of Qwen3-30B-A3B's layer.
std::string gemm1_of(std::string_view scheme, double rows) {
  plan::Deployment d;
  d.layer = plan::layer_of_preset("qwen3-30b-a3b");
  d.formats = plan::find_formats(std::string(scheme), d.layer);
  d.device = Device::cuda(0);
  return kernel_of(plan::gemm_lines(d, d.layer.routing.num_experts, rows)[0]);
}

Report about_this_place() {
  Report report;
  std::string isa;
  for (const auto& [name, has] : cpu_isa()) {
    isa += has ? (isa.empty() ? "" : " ") + name : "";
  }
  report.line("machine", "moebius", "{version}, commit {commit}",
              {{"version", std::string(version())}, {"commit", std::string(commit())}});
  report.line("machine", "machine", "{cpu}, {threads} threads, {memory_bytes}, {isa}",
              {{"cpu", cpu_model()},
               {"threads", Stream::cpu().num_threads()},
               {"memory_bytes", memory_bytes(), Unit::kBytes},
               {"isa", isa.empty() ? "no vector extensions in use" : isa}});
  const CpuCaches& caches = cpu_caches();
  const cpu::TileTuning tuning = cpu::tile_tuning();
  report.line(
      "machine", "caches",
      "{l1_data_bytes} L1, {l2_bytes} L2, {last_level_cache_bytes} last level; experts fetch "
      "{fetch_ahead_bytes} ahead{fetch_by_pages}, beside panels of {panel_bytes}",
      {{"l1_data_bytes", caches.l1_data_bytes, Unit::kBytes},
       {"l2_bytes", caches.l2_bytes, Unit::kBytes},
       {"last_level_cache_bytes", caches.last_level_bytes, Unit::kBytes},
       {"fetch_ahead_bytes", tuning.fetch_ahead, Unit::kBytes},
       {"fetch_by_pages", tuning.fetch_by_pages ? " (AVX-512: from four pages by turns)" : ""},
       {"panel_bytes", tuning.panel_bytes, Unit::kBytes}});
  for (const auto& [name, value] : build_facts()) {
    report.line("build", name, "{" + name + "}", {{name, value}});
  }
  std::vector<std::vector<Json>> rows;
  for (int index = 0; index < cuda_device_count(); ++index) {
    const CudaDeviceInfo gpu = cuda_device_info(index);
    rows.push_back({to_string(Device::cuda(index)), gpu.name,
                    fmt::format("{}.{}", gpu.major, gpu.minor), gpu.num_sms, gpu.memory_bytes});
  }
  if (rows.empty()) {
    report.line("machine", "GPU", "{gpu}", {{"gpu", "none"}});
  } else {
    report.heading("GPUs");
    report.table("gpus", "gpus",
                 {{"device", "device"},
                  {"name", "name"},
                  {"compute_capability", "compute capability"},
                  {"num_sms", "SMs"},
                  {"memory_bytes", "memory", Unit::kBytes}},
                 rows);
  }
  rows.clear();
  for (const SettingInfo& info : all_settings()) {
    const auto value = setting(info.name);
    rows.push_back({info.name, value.value_or(std::string(info.default_value)),
                    value ? "environment" : "default", info.meaning});
  }
  report.heading("settings");
  report.table("settings", "settings",
               {{"name", "name"}, {"value", "value"}, {"from", "from"}, {"meaning", "meaning"}},
               rows);
  report.heading("implementations, first that accepts");
  report.table("implementations", "implementations",
               {{"stage", "stage"},
                {"implementation", "implementation"},
                {"accepts", "accepts"},
                {"reason", "reason"}},
               implementations());
  rows.clear();
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    rows.push_back({scheme.name, scheme.description, gemm1_of(scheme.name, 1),
                    gemm1_of(scheme.name, kManyRows)});
  }
  report.heading("quantization at load (--quant), and GEMM1 of a row and of many on a Hopper GPU");
  report.table("quantization", "schemes",
               {{"name", "name"},
                {"description", "description"},
                {"gemm1_of_a_row", "of a row"},
                {"gemm1_of_many_rows", "of many"}},
               rows);
  rows.clear();
  for (const PresetInfo& preset : model_presets()) {
    rows.push_back({preset.name, preset.description});
  }
  report.heading("presets (make-model --preset)");
  report.table("presets", "presets", {{"name", "name"}, {"description", "description"}}, rows);
  return report;
}

// Lists what this build has.  It does not depend on the processor: machines with the same libraries
// print the same table.
std::string support_table() {
  std::string text = "| stage | implementations, most specialised first |\n| --- | --- |\n";
  std::string_view stage;
  for (const auto& row : implementations()) {
    const bool is_first = row[0].get_ref<const std::string&>() != stage;
    stage = row[0].get_ref<const std::string&>();
    text += is_first ? fmt::format("{}| {} | ", text.back() == '\n' ? "" : " |\n",
                                   row[0].get<std::string>())
                     : ", ";
    text += fmt::format("`{}`", row[1].get<std::string>());
  }
  text += " |\n\n| `--quant` | what it does to an unquantized checkpoint |\n| --- | --- |\n";
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    text += fmt::format("| `{}` | {} |\n", scheme.name, scheme.description);
  }
  return text;
}

// The files of a model, of which the index may be broken: that is one of the answers.
std::vector<std::filesystem::path> files_of(const std::string& model) {
  try {
    return checkpoint::model_files(model);
  } catch (const InvalidArgument&) {
    return {std::filesystem::path(model) / checkpoint::kConfigFile,
            std::filesystem::path(model) / checkpoint::kIndexFile};
  }
}

}  // namespace

int run_subcommand(const InfoOptions& options) {
  expect_writable("--json", options.json);
  if (options.markdown) {
    fmt::print("{}", support_table());
    return kOk;
  }
  if (!options.model.empty()) {
    expect_not_read("--json", options.json, files_of(options.model));
  }
  const Progress progress;
  progress.show("looking");
  const Report report = options.model.empty() ? about_this_place() : about_model(options.model);
  write_text(options.json, json_text(report.json(), 2) + "\n");
  progress.clear();
  fmt::print("{}", report.text());
  return kOk;
}

}  // namespace moebius::app
