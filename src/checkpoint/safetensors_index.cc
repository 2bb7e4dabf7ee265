// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

using nlohmann::json;

// Reads the JSON of an index; only weight_map matters, other fields are skipped.
class IndexSax : public nlohmann::json_sax<json> {
 public:
  explicit IndexSax(std::string_view file) : file_(file) {}

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text); }
  bool binary(binary_t&) override { return scalar("binary data"); }
  bool string(string_t& value) override {
    if (!in_map() || depth_ != 2) {
      return in_map() ? scalar("a string") : true;
    }
    if (!files.emplace(tensor_, value).second) {
      refuse_file(file_, fmt::format("{} appears twice in weight_map", in_quotes(tensor_)));
    }
    return true;
  }
  bool start_object(size_t) override {
    if (in_map() && depth_ >= 2) {
      return scalar("an object");
    }
    ++depth_;
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      section_ = value;
      if (value == "weight_map" && std::exchange(has_map, true)) {
        refuse_file(file_, "weight_map appears twice");
      }
    } else {
      tensor_ = value;
    }
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override {
    if (in_map() || depth_ == 0) {
      return scalar("a list");
    }
    ++depth_;
    return true;
  }
  bool end_array() override { return leave(); }
  bool parse_error(size_t position, const std::string& token, const json::exception& e) override {
    if (dynamic_cast<const json::out_of_range*>(&e) != nullptr) {
      scalar(printable(token, kShownBytes));
      refuse_file(file_, fmt::format("{} at byte {}, expected a number in the range of double",
                                     printable(token, kShownBytes), position));
    }
    refuse_file(file_, fmt::format("not valid JSON at byte {}", position));
  }

  ShardMap files;
  bool has_map = false;

 private:
  bool in_map() const { return section_ == "weight_map"; }
  bool leave() {
    if (--depth_ == 1) {
      section_.clear();
    }
    return true;
  }
  bool scalar(std::string_view what) const {
    if (depth_ == 0) {
      refuse_file(file_, fmt::format("the index is {}, expected an object", what));
    }
    if (in_map()) {
      refuse_file(file_, depth_ == 1
                             ? fmt::format("weight_map is {}, expected an object", what)
                             : fmt::format("weight_map: file of {} is {}, expected a string",
                                           in_quotes(tensor_), what));
    }
    return true;
  }

  std::string_view file_;
  std::string section_;
  std::string tensor_;
  int depth_ = 0;
};

}  // namespace

ShardMap read_safetensors_index(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const std::string name = path.string();
  if (file->size() > kMaxHeaderBytes) {
    refuse_file(name,
                fmt::format("index has {} bytes, the limit is {}", file->size(), kMaxHeaderBytes));
  }
  const auto* text = reinterpret_cast<const char*>(file->data());
  IndexSax sax(name);
  json::sax_parse(text, text + file->size(), &sax);
  if (!sax.has_map) {
    refuse_file(name, "weight_map is missing");
  }
  for (const auto& [tensor, shard] : sax.files) {
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      refuse_file(name,
                  fmt::format("weight_map: file of {} is {}, expected a name in the same folder",
                              in_quotes(tensor), in_quotes(shard)));
    }
  }
  return std::move(sax.files);
}

}  // namespace moebius::checkpoint
