// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layer_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "checkpoint/model_config.h"
#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

// The language model has another root where it is part of a larger model.
constexpr std::string_view kRoots[] = {"model.",
                                       "language_model.model.",
                                       "model.language_model.",
                                       "language_model.",
                                       "thinker.model.",
                                       "backbone.",
                                       ""};

// The place of a layer and the spelling of its block.
struct Place {
  std::string layer;  // "model.layers.1"
  std::string block;  // "model.layers.1.mlp"

  std::string at(std::string_view name) const {
    const bool leads_back = name.starts_with("../");
    return fmt::format("{}.{}", leads_back ? layer : block, leads_back ? name.substr(3) : name);
  }
};

// Calls fn(place) for every place where a layer may be, until it returns true.
template <typename Fn>
bool any_place(const Family& family, int64_t layer, const Fn& fn) {
  for (const std::string_view root : kRoots) {
    for (const std::string_view block : spellings(family.block)) {
      const std::string path = fmt::format("{}layers.{}", root, layer);
      if (fn(Place{path, block.empty() ? path : fmt::format("{}.{}", path, block)})) {
        return true;
      }
    }
  }
  return false;
}

// The first spelling for which exists(name) holds, else the first of all.
template <typename Exists>
std::string choose(const Place& place, std::string_view text, const Exists& exists) {
  const std::vector<std::string_view> names = spellings(text);
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](std::string_view name) { return exists(place.at(name)); });
  return place.at(found == names.end() ? names.front() : *found);
}

// A module holds several tensors where it is quantized.
bool has_below(const Safetensors& files, const std::string& module) {
  return !files.names(module + ".").empty();
}

// The spelling of a fused tensor without .weight, which modules have.
struct FusedSpelling {
  std::string name;
  bool is_module;
};

FusedSpelling fused_spelling(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return name.ends_with(kWeight) ? FusedSpelling{name.substr(0, name.size() - kWeight.size()), true}
                                 : FusedSpelling{name, false};
}

// Fused tensors may also be modules of their own, with all their parts.
bool has_fused(const Safetensors& files, const std::string& spelling) {
  const std::string name = fused_spelling(spelling).name;
  return files.contains(name) || files.contains(name + "_blocks") || has_below(files, name);
}

// Modules of an expert have the names of the family, or those that a tool gave them.
ExpertModules choose_modules(const Safetensors& files,
                             const std::string& path,
                             const ExpertModules& usual) {
  for (const ExpertModules& modules : {usual, kProjModules, kNumberedModules}) {
    if (has_below(files, fmt::format("{}.{}", path, modules.up))) {
      return modules;
    }
  }
  return usual;
}

void set_fused(const std::string& up, const std::string& down, ExpertNames& names) {
  const FusedSpelling fused = fused_spelling(up);
  names.fused_up = fused.name;
  names.has_fused_modules = fused.is_module;
  names.fused_down = fused_spelling(down).name;
}

void choose_fused(const Safetensors& files,
                  const Place& place,
                  std::string_view up,
                  std::string_view down,
                  ExpertNames& names) {
  const auto exists = [&](const std::string& name) { return has_fused(files, name); };
  const std::string fused = choose(place, up, exists);
  if (exists(fused)) {
    set_fused(fused, choose(place, down, exists), names);
    names.has_fused_modules = has_below(files, names.fused_up);
  }
}

ExpertNames find_experts(const Safetensors& files, const Family& family, const Place& place) {
  ExpertNames names;
  const auto exists = [&](const std::string& name) { return has_below(files, name); };
  names.path = choose(place, family.experts, exists);
  choose_fused(files, place, family.fused_up, family.fused_down, names);
  names.modules = choose_modules(files, names.path + ".0", family.modules);
  return names;
}

ExpertNames find_shared(const Safetensors& files, const Family& family, const Place& place) {
  ExpertNames names;
  const auto exists = [&](const std::string& name) { return has_below(files, name); };
  names.path = choose(place, family.shared, exists);
  names.modules = choose_modules(files, names.path, family.shared_modules);
  if (!family.shared_fused_up.empty()) {
    const Place inside = {names.path, names.path};
    choose_fused(files, inside, family.shared_fused_up,
                 fmt::format("{}.weight", names.modules.down), names);
  }
  return names;
}

// "mlp.experts.*.up_proj.weight": experts are alike.
std::string pattern_of(std::string_view name) {
  std::string result;
  bool is_number = false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    const bool begins = i == 0 || name[i - 1] == '.';
    is_number = is_digit && (begins || is_number);
    if (!is_number) {
      result += name[i];
    } else if (begins) {
      result += '*';
    }
  }
  return result;
}

}  // namespace

LayerNames find_names(const Safetensors& files,
                      const ModelConfig& config,
                      int64_t layer,
                      const std::string& directory) {
  const Family& family = *config.family;
  const auto exists = [&](const std::string& name) { return files.contains(name); };
  Place place;
  std::string router, first;
  const bool is_found = any_place(family, layer, [&](const Place& candidate) {
    router = choose(candidate, family.router, exists);
    first = first.empty() ? router : first;
    place = candidate;
    return exists(router);
  });
  if (!is_found) {
    throw InvalidArgument(fmt::format("{}: tensor {} is missing: layer {} has no router", directory,
                                      in_quotes(first), layer));
  }
  LayerNames names;
  names.block = place.block;
  names.router = router;
  names.router_bias = router.substr(0, router.rfind('.')) + ".bias";
  names.correction_bias = choose(place, family.correction_bias, exists);
  names.experts = find_experts(files, family, place);
  if (!family.shared.empty()) {
    names.shared = find_shared(files, family, place);
  }
  if (!family.shared_gate.empty()) {
    names.shared_gate = choose(place, family.shared_gate, exists);
  }
  return names;
}

LayerNames published_names(const Family& family, int64_t layer) {
  Place place;
  any_place(family, layer, [&](const Place& first) {
    place = first;
    return true;
  });
  const auto first = [&](std::string_view text) { return place.at(spellings(text).front()); };
  LayerNames names;
  names.block = place.block;
  names.router = first(family.router);
  names.router_bias = names.router.substr(0, names.router.rfind('.')) + ".bias";
  names.correction_bias = first(family.correction_bias);
  names.experts.path = first(family.experts);
  names.experts.modules = family.modules;
  set_fused(first(family.fused_up), first(family.fused_down), names.experts);
  if (!family.shared.empty()) {
    names.shared.path = first(family.shared);
    names.shared.modules = family.shared_modules;
    if (family.shared_modules.gate.empty()) {
      set_fused(fmt::format("{}.{}", names.shared.path, family.shared_fused_up),
                fmt::format("{}.{}.weight", names.shared.path, family.shared_modules.down),
                names.shared);
    }
  }
  if (!family.shared_gate.empty()) {
    names.shared_gate = first(family.shared_gate);
  }
  return names;
}

std::vector<std::string> unread_tensors(const Safetensors& files, const LayerNames& names) {
  std::vector<std::string> modules = {names.router.substr(0, names.router.rfind('.')),
                                      names.experts.path, names.shared.path};
  if (!pattern_of(names.block).ends_with(".*")) {  // else the block is the whole layer
    modules.push_back(names.block);
  }
  std::set<std::string> all;
  for (const std::string& module : modules) {
    const auto below = module.empty() ? std::vector<std::string>() : files.names(module + ".");
    all.insert(below.begin(), below.end());
  }
  std::set<std::string> read;
  for (const std::string& name : all) {
    if (files.was_read(name)) {
      read.insert(pattern_of(name));
    }
  }
  std::vector<std::string> unread;
  for (const std::string& name : all) {
    if (!read.contains(pattern_of(name))) {
      unread.push_back(name);
    }
  }
  return unread;
}

}  // namespace moebius::checkpoint
