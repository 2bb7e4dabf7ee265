// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ConfigFields: reads typed fields of a JSON object.  Errors are InvalidArgument, naming file,
// field and both values.  A field that is null counts as absent.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::checkpoint {

class ConfigFields {
 public:
  // `object` must outlive this.  `path` is its place in the file, such as "quantization_config.".
  ConfigFields(const nlohmann::json& object, std::string file, std::string path = "");
  // The same fields where keys that the file does not have take their values from `defaults`, which
  // must outlive the result.  A null in the file stays null, as in transformers.
  ConfigFields with_defaults(const nlohmann::json& defaults) const;

  bool has(std::string_view key) const;      // null counts as absent; a default counts as present
  bool is_null(std::string_view key) const;  // it is there, and null
  // The first of the keys that the file has, else the first that has a default.  Throws when there
  // is none, or when the values of two in the file differ.
  std::string_view first_of(const std::vector<std::string_view>& keys) const;

  // These throw for a value outside [low, high].
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  int64_t integer_or(std::string_view key, int64_t otherwise, int64_t low, int64_t high) const;
  // A list with one value per layer counts as that value where all are equal, and is refused else.
  int64_t same_integer(std::string_view key, int64_t low, int64_t high) const;
  bool is_list(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key, int64_t low, int64_t high) const;
  double number_or(std::string_view key, double otherwise) const;
  float float_or(std::string_view key, float otherwise) const;  // throws beyond float's range
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key) const;
  std::string string_or(std::string_view key, std::string_view otherwise) const;
  bool is_string(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;  // a list of strings
  ConfigFields object(std::string_view key) const;
  std::vector<std::string> keys() const;
  // "model/config.json: quantization_config.ignore", with which messages about the field start.
  std::string place(std::string_view key) const;
  const std::string& path() const { return path_; }  // "text_config."; empty at the top

  // Throws InvalidArgument("model/config.json: n_group is 3, expected <expected>"), with the value
  // as JSON.
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;
  // Throws Unsupported in the same way, for a value that is valid but not supported.
  [[noreturn]] void unsupported(std::string_view key, std::string_view supported) const;

 private:
  std::string shown(std::string_view key) const;
  // nullptr where neither the file nor the defaults have it; null in the file counts as absent.
  const nlohmann::json* find(std::string_view key) const;
  const nlohmann::json* find_in_file(std::string_view key) const;
  const nlohmann::json& at(std::string_view key) const;

  const nlohmann::json* object_;
  const nlohmann::json* defaults_ = nullptr;
  std::string file_;
  std::string path_;
};

}  // namespace moebius::checkpoint
