// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// QuantRules: which scheme quantization_config gives each module, by the module's name, such as
// "model.layers.0.mlp.experts.3.gate_proj".  The methods write their rules in four ways, which
// ModuleNames tells apart.
// Thread-safety: const members may be called at the same time.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/config_fields.h"
#include "checkpoint/weight_scheme.h"

namespace moebius::checkpoint {

// A Python regular expression, matched from the start of a name as re.match() does.  Patterns are
// those that ECMAScript has, too.  Time is polynomial in the lengths.
class NameRegex {
 public:
  // Throws Unsupported, which starts with `what`, for a pattern that cannot be read or is longer
  // than 1000 characters.
  NameRegex(const std::string& pattern, const std::string& what);
  ~NameRegex();
  bool matches(const std::string& module) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

// The modules that one entry of a list names.
class ModuleNames {
 public:
  // compressed-tensors and GPTQ: "re:" with a regular expression, or a whole name.
  static ModuleNames named(const std::string& entry, const std::string& what);
  // GPTQ's dynamic rules: a regular expression.
  static ModuleNames like(const std::string& pattern, const std::string& what);
  // ModelOpt: a name with * and ?, or the start of a name that ends at a dot.
  static ModuleNames glob(const std::string& pattern, const std::string& what);
  // transformers (modules_to_not_convert): a regular expression, or the end of a name.
  static ModuleNames part(const std::string& entry, const std::string& what);

  bool contain(const std::string& module) const;

 private:
  std::string whole_;  // empty: none
  std::string end_;
  std::string start_;
  std::vector<NameRegex> regex_;  // at most one
};

struct QuantRule {
  ModuleNames modules;
  WeightScheme scheme;
  std::string label;  // "ignore 're:.*gate'", as messages name it
};

// The scheme of modules that a rule leaves unquantized.
WeightScheme left_out_by(const std::string& rule);

class QuantRules {
 public:
  // No module is quantized.
  QuantRules() = default;
  // `main` is the scheme of modules for which there is no rule.
  explicit QuantRules(WeightScheme main) : main_(std::move(main)) {}

  const WeightScheme& main() const { return main_; }
  // Rules are looked at in the order of their additions; the first that matches counts.
  void add(QuantRule rule) { rules_.push_back(std::move(rule)); }
  // Rules that are added later have no order, such as those of a JSON object: of() refuses modules
  // for which two of them say different things.
  void end_order() { num_ordered_ = rules_.size(); }
  // Throws Unsupported naming the module and both rules, see end_order().
  const WeightScheme& of(const std::string& module) const;

 private:
  WeightScheme main_;
  std::vector<QuantRule> rules_;
  size_t num_ordered_ = std::numeric_limits<size_t>::max();
};

// Reads quantization_config.  `expert_dtype` is that of config.json ("fp4" for DeepSeek-V4, whose
// quantization_config does not tell), and "" where it has none.  Throws Unsupported naming the
// method, and InvalidArgument for values that make no sense.
QuantRules read_quant_rules(const ConfigFields& quantization, const std::string& expert_dtype);

}  // namespace moebius::checkpoint
