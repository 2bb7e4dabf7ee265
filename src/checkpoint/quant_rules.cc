// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quant_rules.h"

#include <fmt/format.h>

#include <regex>

#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

constexpr size_t kMaxPattern = 1000;

bool ends_with_part(const std::string& module, const std::string& end) {
  return !end.empty() && module.ends_with(end);
}

// The regular expression of a name with * and ?.
std::string regex_of_glob(const std::string& glob) {
  std::string result;
  for (const char c : glob) {
    if (c == '*') {
      result += ".*";
    } else if (c == '?') {
      result += '.';
    } else {
      if (std::string_view(R"(\^$.|+()[]{})").find(c) != std::string_view::npos) {
        result += '\\';
      }
      result += c;
    }
  }
  return result + "$";
}

}  // namespace

struct NameRegex::Compiled {
  std::regex regex;
};

NameRegex::NameRegex(const std::string& pattern, const std::string& what) {
  if (pattern.size() > kMaxPattern) {
    throw Unsupported(fmt::format("{} has {} characters, supported: up to {}", what, pattern.size(),
                                  kMaxPattern));
  }
  try {
    // Why polynomial: a pattern from a file must not take for ever.
    compiled_ = std::make_shared<const Compiled>(
        Compiled{std::regex(pattern, std::regex::ECMAScript | std::regex_constants::__polynomial)});
  } catch (const std::regex_error& error) {
    throw Unsupported(fmt::format(
        "{} is not a regular expression that can be read, supported: those of ECMAScript", what));
  }
}

NameRegex::~NameRegex() = default;

bool NameRegex::matches(const std::string& module) const {
  return std::regex_search(module, compiled_->regex, std::regex_constants::match_continuous);
}

ModuleNames ModuleNames::named(const std::string& entry, const std::string& what) {
  if (entry.starts_with("re:")) {
    return like(entry.substr(3), what);
  }
  ModuleNames result;
  result.whole_ = entry;
  return result;
}

ModuleNames ModuleNames::like(const std::string& pattern, const std::string& what) {
  ModuleNames result;
  result.regex_.emplace_back(pattern, what);
  return result;
}

ModuleNames ModuleNames::glob(const std::string& pattern, const std::string& what) {
  ModuleNames result;
  if (pattern.find_first_of("*?") != std::string::npos) {
    result.regex_.emplace_back(regex_of_glob(pattern), what);
  } else {
    result.whole_ = pattern;
    result.start_ = pattern + ".";
  }
  return result;
}

ModuleNames ModuleNames::part(const std::string& entry, const std::string& what) {
  // Most entries are plain names, of which a list may have thousands.
  const bool is_plain = entry.find_first_of(R"(\^$|?*+()[]{})") == std::string::npos;
  ModuleNames result = is_plain ? ModuleNames() : like(entry, what);
  result.start_ = is_plain ? entry : "";
  result.end_ = entry;
  return result;
}

bool ModuleNames::contain(const std::string& module) const {
  return (!whole_.empty() && module == whole_) || ends_with_part(module, end_) ||
         (!start_.empty() && module.starts_with(start_)) ||
         (!regex_.empty() && regex_.front().matches(module));
}

WeightScheme left_out_by(const std::string& rule) {
  WeightScheme scheme;
  scheme.name = fmt::format("none, by {}", rule);
  return scheme;
}

const WeightScheme& QuantRules::of(const std::string& module) const {
  const QuantRule* found = nullptr;
  for (size_t i = 0; i < rules_.size(); ++i) {
    const QuantRule& rule = rules_[i];
    if (!rule.modules.contain(module)) {
      continue;
    }
    if (i < num_ordered_) {
      return rule.scheme;
    }
    const bool leave_out_both = found != nullptr && !found->scheme.format && !rule.scheme.format;
    if (found != nullptr && found->scheme != rule.scheme && !leave_out_both) {
      throw Unsupported(fmt::format(
          "quantization_config has two rules for {}, {} and {}, supported: rules that agree",
          in_quotes(module), found->label, rule.label));
    }
    found = found == nullptr ? &rule : found;
  }
  return found == nullptr ? main_ : found->scheme;
}

}  // namespace moebius::checkpoint
