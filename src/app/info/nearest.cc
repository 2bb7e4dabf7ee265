// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/info/nearest.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "moebius/checkpoint.h"

namespace moebius::app {

namespace {

using nlohmann::json;

// A kind of numbers, such as fp8 or int4.
struct Numbers {
  std::optional<int64_t> bits;
  std::optional<bool> is_float;
};

// Reads words such as "fp8_w8a8", "mxfp4", "nf4", "int4", "float8_e4m3fn".
void read_word(std::string_view word, Numbers& numbers) {
  for (const auto& [text, is_float] :
       {std::pair("float", true), {"fp", true}, {"nf", true}, {"int", false}}) {
    const size_t at = word.find(text);
    const size_t digit = at + std::string_view(text).size();
    if (at == std::string_view::npos || digit >= word.size() ||
        std::isdigit(static_cast<unsigned char>(word[digit])) == 0) {
      continue;
    }
    numbers.is_float = numbers.is_float.value_or(is_float);
    numbers.bits = numbers.bits.value_or(word[digit] - '0');
  }
}

// Looks at all fields, outer ones first.
void read_fields(const json& value, Numbers& numbers, int depth = 0) {
  constexpr int kDeepest = 8;
  if (!value.is_object() || depth > kDeepest) {
    return;
  }
  for (const auto& [key, field] : value.items()) {
    if (field.is_number_integer() &&
        (key == "bits" || key == "num_bits" || key == "w_bit" || key == "weight_bits")) {
      numbers.bits = numbers.bits.value_or(field.get<int64_t>());
    } else if (field.is_boolean() && field.get<bool>() && key.starts_with("load_in_")) {
      numbers.bits = numbers.bits.value_or(key == "load_in_4bit" ? 4 : 8);
    } else if (field.is_string() && key == "type") {
      numbers.is_float = numbers.is_float.value_or(field.get<std::string>() == "float");
    }
  }
  for (const auto& [key, field] : value.items()) {
    if (field.is_string()) {
      read_word(field.get<std::string>(), numbers);
    }
  }
  for (const auto& [key, field] : value.items()) {
    read_fields(field, numbers, depth + 1);
  }
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // distances of a prefix of a to the prefixes of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, replaced}));
    }
  }
  return row.back();
}

std::string nearest_word(std::string_view name, const std::vector<std::string>& words) {
  constexpr size_t kLongest = 256;  // names come from files
  name = name.substr(0, kLongest);
  std::string nearest;
  size_t least = (name.size() + 1) / 2;
  for (const std::string& word : words) {
    if (const size_t distance = edit_distance(name, word); distance < least) {
      least = distance;
      nearest = word;
    }
  }
  return nearest;
}

std::string nearest_scheme(const json& quantization) {
  Numbers wanted;
  read_fields(quantization, wanted);
  if (!wanted.bits) {
    return "";
  }
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    Numbers numbers;
    read_word(scheme.name, numbers);
    // A config that does not name the kind means integers, as GPTQ and AWQ do.
    if (numbers.bits == wanted.bits && numbers.is_float == wanted.is_float.value_or(false)) {
      return scheme.name;
    }
  }
  return "";
}

}  // namespace moebius::app
