// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

using nlohmann::json;

namespace {

std::optional<int64_t> integer_in(const json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    return std::nullopt;
  }
  const auto integer = value.get<int64_t>();
  return low <= integer && integer <= high ? std::optional(integer) : std::nullopt;
}

}  // namespace

ConfigFields::ConfigFields(const json& object, std::string file, std::string path)
    : object_(&object), file_(std::move(file)), path_(std::move(path)) {}

ConfigFields ConfigFields::with_defaults(const json& defaults) const {
  ConfigFields result = *this;
  result.defaults_ = &defaults;
  return result;
}

const json* ConfigFields::find_in_file(std::string_view key) const {
  const auto it = object_->find(key);
  return it != object_->end() && !it->is_null() ? &*it : nullptr;
}

const json* ConfigFields::find(std::string_view key) const {
  if (defaults_ == nullptr || object_->contains(key)) {
    return find_in_file(key);
  }
  const auto it = defaults_->find(key);
  return it != defaults_->end() && !it->is_null() ? &*it : nullptr;
}

bool ConfigFields::has(std::string_view key) const {
  return find(key) != nullptr;
}

bool ConfigFields::is_null(std::string_view key) const {
  const auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

const json& ConfigFields::at(std::string_view key) const {
  if (!has(key)) {
    throw InvalidArgument(fmt::format("{}: {}{} is missing", file_, path_, key));
  }
  return *find(key);
}

std::string ConfigFields::shown(std::string_view key) const {
  constexpr size_t kShown = 80;
  std::string value = has(key) ? at(key).dump(-1, ' ', true, json::error_handler_t::replace)
                               : std::string("missing");
  if (value.size() > kShown) {
    value = value.substr(0, kShown) + "...";
  }
  const bool is_default = has(key) && find_in_file(key) == nullptr;
  return fmt::format("{}: {}{} is {}", file_, path_, key,
                     is_default ? fmt::format("missing, which means {}", value) : value);
}

void ConfigFields::refuse(std::string_view key, std::string_view expected) const {
  throw InvalidArgument(fmt::format("{}, expected {}", shown(key), expected));
}

void ConfigFields::unsupported(std::string_view key, std::string_view supported) const {
  throw Unsupported(fmt::format("{}, supported: {}", shown(key), supported));
}

std::string_view ConfigFields::first_of(const std::vector<std::string_view>& keys) const {
  std::string_view found;
  for (const std::string_view key : keys) {
    if (find_in_file(key) == nullptr) {
      continue;
    }
    if (found.empty()) {
      found = key;
    } else if (at(key) != at(found)) {
      throw InvalidArgument(
          fmt::format("{}, but {}{} is {}", shown(found), path_, key, at(key).dump()));
    }
  }
  for (const std::string_view key : keys) {
    found = found.empty() && has(key) ? key : found;
  }
  if (found.empty()) {
    throw InvalidArgument(
        fmt::format("{}: {}{} is missing", file_, path_, fmt::join(keys, " or ")));
  }
  return found;
}

int64_t ConfigFields::integer(std::string_view key, int64_t low, int64_t high) const {
  const std::optional<int64_t> value = integer_in(at(key), low, high);
  if (!value) {
    refuse(key, fmt::format("an integer in [{}, {}]", low, high));
  }
  return *value;
}

int64_t ConfigFields::integer_or(std::string_view key,
                                 int64_t otherwise,
                                 int64_t low,
                                 int64_t high) const {
  return has(key) ? integer(key, low, high) : otherwise;
}

bool ConfigFields::is_list(std::string_view key) const {
  return has(key) && at(key).is_array();
}

int64_t ConfigFields::same_integer(std::string_view key, int64_t low, int64_t high) const {
  if (!is_list(key)) {
    return integer(key, low, high);
  }
  const std::vector<int64_t> values = integers(key, low, high);
  if (values.empty() || std::count(values.begin(), values.end(), values.front()) !=
                            static_cast<ptrdiff_t>(values.size())) {
    unsupported(key, "an integer, or a list of equal integers");
  }
  return values.front();
}

std::vector<int64_t> ConfigFields::integers(std::string_view key, int64_t low, int64_t high) const {
  const json& list = at(key);
  std::vector<int64_t> result;
  if (!list.is_array()) {
    refuse(key, "a list of integers");
  }
  for (const json& value : list) {
    const std::optional<int64_t> integer = integer_in(value, low, high);
    if (!integer) {
      refuse(key, fmt::format("a list of integers in [{}, {}]", low, high));
    }
    result.push_back(*integer);
  }
  return result;
}

double ConfigFields::number_or(std::string_view key, double otherwise) const {
  if (has(key) && !at(key).is_number()) {
    refuse(key, "a number");
  }
  return has(key) ? at(key).get<double>() : otherwise;
}

float ConfigFields::float_or(std::string_view key, float otherwise) const {
  const double value = number_or(key, otherwise);
  if (std::fabs(value) > std::numeric_limits<float>::max()) {
    refuse(key, "a number in the range of float");
  }
  return static_cast<float>(value);
}

bool ConfigFields::boolean_or(std::string_view key, bool otherwise) const {
  if (has(key) && !at(key).is_boolean()) {
    refuse(key, "true or false");
  }
  return has(key) ? at(key).get<bool>() : otherwise;
}

std::string ConfigFields::string(std::string_view key) const {
  if (!at(key).is_string()) {
    refuse(key, "a string");
  }
  return at(key).get<std::string>();
}

std::string ConfigFields::string_or(std::string_view key, std::string_view otherwise) const {
  return has(key) ? string(key) : std::string(otherwise);
}

bool ConfigFields::is_string(std::string_view key) const {
  return has(key) && at(key).is_string();
}

std::vector<std::string> ConfigFields::strings(std::string_view key) const {
  const json& list = at(key);
  std::vector<std::string> result;
  if (!list.is_array()) {
    refuse(key, "a list of strings");
  }
  for (const json& value : list) {
    if (!value.is_string()) {
      refuse(key, "a list of strings");
    }
    result.push_back(value.get<std::string>());
  }
  return result;
}

std::string ConfigFields::place(std::string_view key) const {
  return fmt::format("{}: {}{}", file_, path_, printable(key));
}

ConfigFields ConfigFields::object(std::string_view key) const {
  if (!at(key).is_object()) {
    refuse(key, "an object");
  }
  return {at(key), file_, fmt::format("{}{}.", path_, printable(key))};
}

std::vector<std::string> ConfigFields::keys() const {
  std::vector<std::string> result;
  for (const auto& item : object_->items()) {
    result.push_back(item.key());
  }
  return result;
}

}  // namespace moebius::checkpoint
