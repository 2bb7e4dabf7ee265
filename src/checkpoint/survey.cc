// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "core/digest.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

constexpr std::string_view kExperts = ".experts";
constexpr int64_t kMostExperts = 1 << 20;  // as config.json may have

// The number that `text` begins with, if a dot or nothing follows it.
std::optional<int64_t> leading_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool ends = end == text.data() + text.size() || *end == '.';
  return error == std::errc() && ends && number >= 0 ? std::optional(number) : std::nullopt;
}

// The first number among the modules of a prefix: the layer in "model.layers.3.mlp".
std::optional<int64_t> layer_of(std::string_view prefix) {
  for (size_t dot = prefix.find('.'); dot != std::string_view::npos;
       dot = prefix.find('.', dot + 1)) {
    if (const auto number = leading_number(prefix.substr(dot + 1))) {
      return number;
    }
  }
  return std::nullopt;
}

// What one tensor of an expert is, and which experts have it.
struct ExpertTensor {
  std::string name;  // behind the number of the expert
  std::string dtype;
  Shape shape;

  auto key() const { return std::pair(std::pair(name, dtype), to_string(shape)); }
  bool operator<(const ExpertTensor& other) const { return key() < other.key(); }
};
using Owners = std::map<ExpertTensor, std::set<int64_t>>;

// Experts that lack what most have, or have what most lack.
std::vector<int64_t> unlike_most(const Owners& owners, int64_t num_experts) {
  constexpr size_t kMost = 4;
  std::vector<int64_t> unlike;
  for (const auto& [tensor, experts] : owners) {
    const bool is_common = 2 * static_cast<int64_t>(experts.size()) > num_experts;
    for (int64_t e = 0; e < num_experts && unlike.size() < kMost; ++e) {
      const bool has_it = experts.count(e) > 0;
      if (has_it != is_common && std::count(unlike.begin(), unlike.end(), e) == 0) {
        unlike.push_back(e);
        break;  // one of them tells enough about this tensor
      }
    }
  }
  return unlike;
}

std::string by_size(const std::map<std::string, int64_t>& bytes_of) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [dtype, bytes] : bytes_of) {
    order.emplace_back(-bytes, dtype);
  }
  std::sort(order.begin(), order.end());
  std::string text;
  for (const auto& [bytes, dtype] : order) {
    text += (text.empty() ? "" : ", ") + dtype;
  }
  return text;
}

}  // namespace

std::vector<ExpertBlock> find_expert_blocks(const std::vector<std::string>& names) {
  std::vector<ExpertBlock> blocks;
  std::set<std::string, std::less<>> seen;
  for (const std::string& name : names) {
    const size_t experts = name.find(kExperts);
    const bool is_module =
        experts != std::string::npos &&
        (name.size() == experts + kExperts.size() || name[experts + kExperts.size()] == '.');
    const std::string_view prefix = std::string_view(name).substr(0, is_module ? experts : 0);
    if (const auto layer = layer_of(prefix); layer && seen.emplace(prefix).second) {
      blocks.push_back({*layer, std::string(prefix)});
    }
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const ExpertBlock& a, const ExpertBlock& b) { return a.layer < b.layer; });
  return blocks;
}

BlockSurvey survey_block(const Safetensors& files,
                         const std::vector<std::string>& names,
                         const std::string& prefix) {
  BlockSurvey survey;
  Digest digest;
  std::map<std::string, int64_t> bytes_of;  // by dtype
  Owners owners;
  const std::string begin = prefix + ".";
  for (auto it = std::lower_bound(names.begin(), names.end(), begin);
       it != names.end() && it->starts_with(begin); ++it) {
    const std::string_view name = std::string_view(*it).substr(prefix.size());
    const SafetensorsEntry* entry = nullptr;
    try {
      entry = &files.entry(*it);
    } catch (const Error& error) {
      survey.problem = survey.problem.empty() ? error.what() : survey.problem;
      continue;
    }
    const auto bytes = static_cast<int64_t>(entry->end - entry->begin);
    survey.bytes += bytes;
    ++survey.num_tensors;
    const std::string text =
        fmt::format("{} {} {};", name, entry->dtype_name, to_string(entry->shape));
    digest.add(std::as_bytes(std::span(text)));
    if (!name.starts_with(kExperts)) {
      continue;
    }
    bytes_of[entry->dtype_name] += bytes;
    const std::string_view behind = name.substr(std::min(name.size(), kExperts.size() + 1));
    if (const auto expert = leading_number(behind)) {
      const size_t dot = std::min(behind.find('.'), behind.size());
      owners[{std::string(behind.substr(dot)), entry->dtype_name, entry->shape}].insert(*expert);
      survey.num_experts = std::max(survey.num_experts, std::min(*expert, kMostExperts) + 1);
    } else if (survey.num_experts == 0 && entry->shape.size() > 0) {
      survey.num_experts = entry->shape[0];
    }
  }
  survey.unlike = unlike_most(owners, survey.num_experts);
  survey.dtypes = by_size(bytes_of);
  survey.digest = digest.value();
  return survey;
}

}  // namespace moebius::checkpoint
