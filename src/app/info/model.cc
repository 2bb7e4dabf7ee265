// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/info/model.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "app/info/checkpoint_facts.h"
#include "checkpoint/model_files.h"

namespace moebius::app {

namespace {

using checkpoint::BlockSurvey;
using checkpoint::ExpertBlock;
namespace fs = std::filesystem;

// "0-2, 5"
std::string ranges_text(const std::vector<ExpertBlock>& blocks) {
  std::string text;
  for (size_t first = 0; first < blocks.size();) {
    size_t last = first;
    while (last + 1 < blocks.size() && blocks[last + 1].layer == blocks[last].layer + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ", ") + std::to_string(blocks[first].layer);
    text += last > first ? fmt::format("-{}", blocks[last].layer) : "";
    first = last + 1;
  }
  return text;
}

void add_subject(Report& report, const CheckpointFacts& model) {
  const RawConfig& raw = model.raw;
  size_t num_moe_layers = 0;  // in the files
  for (const Kind& kind : model.kinds) {
    num_moe_layers += kind.blocks.size();
  }
  report.line("model", "model", "{directory} ({family}), {quant_method}",
              {{"directory", model.directory},
               {"family", raw.model_type.empty() ? Json() : Json(raw.model_type)},
               {"quant_method", raw.quant_method},
               {"architectures", raw.architectures}});
  report.line("model", "layers", "{num_layers}, {num_moe_layers} with experts",
              {{"num_layers", raw.num_layers}, {"num_moe_layers", num_moe_layers}});
  report.line("model", "hidden", "{hidden}", {{"hidden", raw.hidden}});
  report.line(
      "model", "experts", "{num_experts} of {intermediate}, top-{topk}",
      {{"num_experts", raw.num_experts}, {"intermediate", raw.intermediate}, {"topk", raw.topk}});
}

void add_subject(Report& report, const CheckpointFacts& model, const ModelInfo& m) {
  report.line("model", "model", "{directory} ({family}), {quant_method}",
              {{"directory", model.directory},
               {"family", m.family},
               {"quant_method", m.quant_method},
               {"architectures", model.raw.architectures}});
  report.line("model", "layers", "{num_layers}, {num_moe_layers} with experts",
              {{"num_layers", m.num_layers},
               {"num_moe_layers", m.moe_layers.size()},
               {"moe_layers", m.moe_layers}});
  report.line("model", "hidden", "{hidden}", {{"hidden", m.hidden}});
  report.line("model", "experts", "{num_experts} of {intermediate}, top-{topk}",
              {{"num_experts", m.num_experts}, {"intermediate", m.intermediate}, {"topk", m.topk}});
  report.line("model", "shared experts", "{num_shared_experts}, {shared_intermediate} in all",
              {{"num_shared_experts", m.num_shared_experts},
               {"shared_intermediate", m.shared_intermediate}});
}

void add_files(Report& report, const CheckpointFacts& model) {
  if (!model.files) {
    report.line("files", "files", "{problem}", {{"problem", model.files_problem}});
    return;
  }
  const std::vector<fs::path> paths = model.files->files();
  int64_t bytes = 0;
  std::vector<std::string> missing;
  for (const fs::path& path : paths) {
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    bytes += error ? 0 : static_cast<int64_t>(size);
    if (error) {
      missing.push_back(path.filename().string());
    }
  }
  const std::vector<std::string> unused = checkpoint::unused_shards(model.directory, paths);
  report.line("files", "files", "{num_files} with {num_tensors} tensors, {bytes}",
              {{"num_files", paths.size()},
               {"num_tensors", model.files->names().size()},
               {"bytes", bytes, Unit::kBytes},
               {"missing", missing},
               {"unused", unused}});
  if (!missing.empty()) {
    report.line("files", "missing", "{num_missing} of them, the first is {first_missing}",
                {{"num_missing", missing.size()}, {"first_missing", missing.front()}});
  }
  if (!unused.empty()) {
    report.line("files", "not read",
                "{num_unused} of {num_there} safetensors files, the first is {first_unused}",
                {{"num_unused", unused.size()},
                 {"num_there", unused.size() + paths.size() - missing.size()},
                 {"first_unused", unused.front()}});
  }
}

void add_kinds(Report& report, const CheckpointFacts& model) {
  const auto shown = [](const Choice& choice) { return choice.name.empty() ? "no" : choice.name; };
  std::vector<std::vector<Json>> rows;
  Json per_layer = Json::array();
  for (const Kind& kind : model.kinds) {
    const BlockSurvey& s = kind.survey;
    std::vector<Json> row = {ranges_text(kind.blocks), kind.blocks.size(), s.num_experts, s.dtypes,
                             s.bytes};
    if (kind.choice) {
      const LayerChoice& c = *kind.choice;
      row.insert(row.end(), {c.format, shown(c.router), shown(c.cpu), shown(c.gpu_one_row),
                             shown(c.gpu_many_rows)});
    } else {
      row.insert(row.end(), 5, Json());
    }
    for (const ExpertBlock& block : kind.blocks) {
      per_layer.push_back({{"layer", block.layer}, {"block", block.prefix}, {"kind", rows.size()}});
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) {
    return;
  }
  report.heading("layers with experts, and what would compute them");
  report.table("layers", "kinds",
               {{"layers", "layers"},
                {"num_layers", "number"},
                {"num_experts", "experts"},
                {"stored", "stored"},
                {"bytes", "bytes each", Unit::kBytes},
                {"format", "format"},
                {"router", "router"},
                {"cpu", "CPU"},
                {"gpu_one_row", "Hopper GPU, a row per expert"},
                {"gpu_many_rows", "many rows"}},
               rows);
  report.hidden("layers", {"layers", std::move(per_layer)});
}

// The reasons why kinds do not run, each on a line.
void add_reasons(Report& report, const CheckpointFacts& model) {
  Json reasons = Json::array();
  for (const Kind& kind : model.kinds) {
    std::vector<std::string> lines = {kind.reason};
    if (kind.choice) {
      for (const auto& [what, choice] : {std::pair("router", &kind.choice->router),
                                         {"CPU", &kind.choice->cpu},
                                         {"GPU", &kind.choice->gpu_many_rows}}) {
        lines.push_back(choice->reason.empty() ? "" : fmt::format("{}: {}", what, choice->reason));
      }
    }
    for (const std::string& line : lines) {
      if (!line.empty()) {
        const std::string layers = ranges_text(kind.blocks);
        report.line("reasons", "layers " + layers, "{reason}", {{"reason", line}});
        reasons.push_back({{"layers", layers}, {"reason", line}});
      }
    }
  }
  report.hidden("layers", {"reasons", std::move(reasons)});
}

void add_verdict(Report& report, const CheckpointFacts& model) {
  const Nearest& nearest = model.nearest;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  report.line("model", "runs",
              model.reason.empty() ? "yes: moebius run --model {directory}" : "no: {reason}",
              {{"runs", model.reason.empty()},
               {"reason", or_null(model.reason)},
               {"directory", model.directory},
               {"nearest_family", or_null(nearest.family)},
               {"nearest_quant", or_null(nearest.scheme)}});
  if (!nearest.family.empty()) {
    report.line("model", "nearest", "the family {nearest_family} has the name that is most like it",
                {{"nearest_family", nearest.family}});
  }
  if (!nearest.scheme.empty()) {
    report.line("model", "nearest",
                "the unquantized checkpoint of this model, with --quant {nearest_quant}",
                {{"nearest_quant", nearest.scheme}});
  }
  if (!model.others.empty()) {
    report.line("model", "beside",
                "{num_other_blocks} blocks of experts that are no layers, the "
                "first is {first_other_block}",
                {{"num_other_blocks", model.others.size()},
                 {"first_other_block", model.others.front().prefix}});
  }
}

}  // namespace

Report about_model(const std::string& directory) {
  const CheckpointFacts model = read_checkpoint_facts(directory);
  Report report;
  if (model.checkpoint != nullptr) {
    add_subject(report, model, model.checkpoint->info());
  } else {
    add_subject(report, model);
  }
  add_files(report, model);
  add_verdict(report, model);
  add_kinds(report, model);
  add_reasons(report, model);
  return report;
}

}  // namespace moebius::app
