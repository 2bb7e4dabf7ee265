// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/info/checkpoint_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "app/info/nearest.h"
#include "checkpoint/json_text.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_files.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

using checkpoint::BlockSurvey;
using checkpoint::ExpertBlock;
using nlohmann::json;
namespace fs = std::filesystem;

// Calls make(), and keeps the message of an error instead of what it would have made.
template <typename Make>
auto attempt(std::string& problem, const Make& make) -> std::optional<decltype(make())> {
  try {
    return make();
  } catch (const Error& error) {
    problem = error.what();
    return std::nullopt;
  }
}

struct FoundBlock {
  ExpertBlock block;
  std::string problem;  // why the layer's block is not there
};

// Blocks of the layers with experts: of those that the family's rules name, or of all that the
// files have where there are no rules.
std::vector<FoundBlock> find_blocks(CheckpointFacts& model, const std::vector<std::string>& names) {
  const std::vector<ExpertBlock> in_files = checkpoint::find_expert_blocks(names);
  std::vector<FoundBlock> blocks;
  if (model.checkpoint == nullptr) {
    for (const ExpertBlock& block : in_files) {
      blocks.push_back({block, ""});
    }
    return blocks;
  }
  std::set<std::string> prefixes;
  for (const int64_t layer : model.checkpoint->info().moe_layers) {
    FoundBlock found{{layer, ""}, ""};
    found.block.prefix =
        attempt(found.problem, [&] { return model.checkpoint->block_prefix(layer); }).value_or("");
    prefixes.insert(found.block.prefix);
    blocks.push_back(std::move(found));
  }
  for (const ExpertBlock& block : in_files) {
    if (prefixes.count(block.prefix) == 0 &&
        !std::binary_search(model.checkpoint->info().moe_layers.begin(),
                            model.checkpoint->info().moe_layers.end(), block.layer)) {
      model.others.push_back(block);
    }
  }
  return blocks;
}

void choose(const CheckpointFacts& model, Kind& kind) {
  const int64_t num_experts = model.checkpoint->info().num_experts;
  std::vector<int64_t> experts = {0};
  for (const int64_t e : kind.survey.unlike) {
    if (e > 0 && e < num_experts) {
      experts.push_back(e);
    }
  }
  kind.choice = attempt(kind.reason, [&] {
    return choose_for(*model.checkpoint, kind.blocks.front().layer, experts);
  });
}

void find_kinds(CheckpointFacts& model) {
  const std::vector<std::string> names = model.files->names();
  for (const auto& [block, problem] : find_blocks(model, names)) {
    BlockSurvey survey;
    survey.problem = problem;
    if (problem.empty()) {
      survey = checkpoint::survey_block(*model.files, names, block.prefix);
    }
    // All layers that are not all there are one kind, whose reason is that of the first of them.
    const auto same = std::find_if(model.kinds.begin(), model.kinds.end(), [&](const Kind& kind) {
      return kind.survey.digest == survey.digest &&
             kind.survey.problem.empty() == survey.problem.empty();
    });
    if (same != model.kinds.end()) {
      same->blocks.push_back(block);
    } else {
      model.kinds.push_back({{block}, std::move(survey), std::nullopt, ""});
    }
  }
  for (Kind& kind : model.kinds) {
    kind.reason = kind.survey.problem;
    if (model.checkpoint != nullptr && kind.reason.empty()) {
      choose(model, kind);
    }
    if (model.reason.empty() && !kind.runs()) {
      model.reason =
          kind.choice ? kind.choice->cpu.reason + kind.choice->router.reason : kind.reason;
    }
  }
}

Nearest find_nearest(const CheckpointFacts& model) {
  Nearest nearest;
  if (!model.config || model.checkpoint != nullptr) {
    return nearest;
  }
  const std::string& type = model.raw.model_type;
  if (!type.empty() && checkpoint::find_family(type) == nullptr) {
    std::vector<std::string> types;
    const std::string names = checkpoint::family_names();
    constexpr std::string_view kComma = ", ";
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = std::min(names.find(kComma, begin), names.size());
      types.push_back(names.substr(begin, end - begin));
      begin = end + kComma.size();
    }
    nearest.family = nearest_word(type, types);
    return nearest;
  }
  json plain = *model.config;
  plain.erase("quantization_config");
  for (json& part : plain) {  // such as text_config
    if (part.is_object()) {
      part.erase("quantization_config");
    }
  }
  std::string ignored;
  if (attempt(ignored, [&] { return checkpoint::parse_model_config(plain, ""); })) {
    nearest.scheme = nearest_scheme(model.raw.quantization);
  }
  return nearest;
}

}  // namespace

CheckpointFacts read_checkpoint_facts(const std::string& directory) {
  CheckpointFacts model;
  model.directory = directory;
  checkpoint::expect_no_cache_root(directory);
  model.config = attempt(model.config_problem, [&] {
    return checkpoint::read_json_object(fs::path(directory) / checkpoint::kConfigFile);
  });
  model.files = attempt(model.files_problem, [&] { return Safetensors(directory); });
  if (!model.config && !model.files) {
    throw InvalidArgument(model.config_problem);
  }
  model.raw = read_raw_config(model.config.value_or(json::object()));
  if (auto made = attempt(model.reason, [&] { return std::make_unique<Checkpoint>(directory); })) {
    model.checkpoint = std::move(*made);
  }
  if (model.files) {
    find_kinds(model);
  }
  model.nearest = find_nearest(model);
  if (model.reason.empty() && model.kinds.empty()) {
    model.reason = "no layer has experts";
  }
  return model;
}

}  // namespace moebius::app
