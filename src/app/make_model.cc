// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>

#include "app/commands.h"
#include "app/output_file.h"
#include "app/progress.h"
#include "app/report/report.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

void print_presets() {
  for (const PresetInfo& preset : model_presets()) {
    fmt::print("{:<18} {}\n", preset.name, preset.description);
  }
}

}  // namespace

int run_subcommand(const MakeModelOptions& options) {
  if (options.preset == "list") {
    print_presets();
    return kOk;
  }
  if (options.output.empty()) {
    throw InvalidArgument("--output is required (see moebius make-model --help)");
  }
  expect_writable_folder("--output", options.output);
  const Progress progress;
  progress.show("writing " + options.output);
  const int64_t bytes =
      make_model(options.preset, options.layers, options.quant, options.seed, options.output);
  const ModelInfo model = Checkpoint(options.output).info();
  Report report;
  report.line("model", "wrote",
              "{directory}: {family}, {layers} MoE layers of {num_experts} experts, "
              "{quant_method}, {bytes}",
              {{"directory", options.output},
               {"family", model.family},
               {"layers", model.moe_layers.size()},
               {"num_experts", model.num_experts},
               {"quant_method", model.quant_method},
               {"bytes", bytes, Unit::kBytes}});
  progress.clear();
  fmt::print("{}", report.text());
  return kOk;
}

}  // namespace moebius::app
