// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/json_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "core/printable.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

using nlohmann::json;

namespace {

// Finds out what is wrong with a text that is no JSON, or has a number that no double holds, and
// where: it keeps the keys and places of lists that lead to where the parser is.
class FaultFinder : public json::json_sax_t {
 public:
  explicit FaultFinder(std::string_view file) : file_(file) {}

  bool null() override { return next(); }
  bool boolean(bool) override { return next(); }
  bool number_integer(number_integer_t) override { return next(); }
  bool number_unsigned(number_unsigned_t) override { return next(); }
  bool number_float(number_float_t, const string_t&) override { return next(); }
  bool string(string_t&) override { return next(); }
  bool binary(binary_t&) override { return next(); }
  bool start_object(size_t) override { return enter(false); }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override { return enter(true); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    path_.back().key = name;
    return true;
  }
  [[noreturn]] bool parse_error(size_t byte,
                                const std::string& token,
                                const json::exception& error) override {
    if (dynamic_cast<const json::out_of_range*>(&error) != nullptr) {
      throw InvalidArgument(fmt::format("{}: {} is {}, expected a number in the range of double",
                                        file_, place(), shortened(token)));
    }
    const std::string after = path_.empty() || place().empty() ? "" : ", at or after " + place();
    throw InvalidArgument(fmt::format("{}: not valid JSON at byte {}{}", file_, byte, after));
  }

 private:
  struct Step {
    bool is_list = false;
    size_t idx = 0;   // of a list
    std::string key;  // of an object
  };

  bool enter(bool is_list) {
    path_.push_back({.is_list = is_list, .idx = 0, .key = ""});
    return true;
  }
  bool leave() {
    path_.pop_back();
    return next();
  }
  bool next() {
    if (!path_.empty()) {
      ++path_.back().idx;
    }
    return true;
  }

  // Such as "rope_scaling.factors[2]".
  std::string place() const {
    std::string text;
    for (const Step& step : path_) {
      if (step.is_list) {
        text += fmt::format("[{}]", step.idx);
      } else {
        text += (text.empty() ? "" : ".") + step.key;
      }
    }
    return shortened(text);
  }

  static std::string shortened(std::string_view text) {
    constexpr size_t kShown = 80;
    return printable(text, kShown);
  }

  std::string_view file_;
  std::vector<Step> path_;
};

json parse_json(std::string_view text, std::string_view file) {
  constexpr int kMaxJsonDepth = 64;
  // depth counts the objects and lists around the value.
  const auto check_depth = [&](int depth, json::parse_event_t event, json&) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonDepth) {
      throw InvalidArgument(
          fmt::format("{}: JSON nested {} deep, the limit is {}", file, depth + 1, kMaxJsonDepth));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check_depth);
  } catch (const json::exception&) {
    FaultFinder finder(file);
    json::sax_parse(text.begin(), text.end(), &finder);
    throw;  // not reached: the finder parses as parse() does, and throws for the same fault
  }
}

}  // namespace

json read_json_object(const std::filesystem::path& path) {
  constexpr uint64_t kMaxBytes = 64 << 20;
  const auto file = MappedFile::open(path);
  if (file->size() > kMaxBytes) {
    throw InvalidArgument(
        fmt::format("{}: {} bytes, the limit is {}", path.string(), file->size(), kMaxBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  json result = parse_json(text, path.string());
  if (!result.is_object()) {
    throw InvalidArgument(
        fmt::format("{}: a JSON {}, expected an object", path.string(), result.type_name()));
  }
  return result;
}

}  // namespace moebius::checkpoint
