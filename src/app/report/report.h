// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Report: what a command tells a person, and the same as JSON.
// Invariant: text is made from the values that the JSON holds, so neither has a figure the other
// lacks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::app {

using Json = nlohmann::ordered_json;

// How a number is printed.  Its JSON value is always the plain one, in the unit its key ends with.
enum class Unit {
  kPlain,     // 42, or text as it is
  kDecimals,  // 1.53
  kSmall,     // 1.53e-03
  kPercent,   // of a fraction: 12.3 %
  kBytes,     // 1.21 GB (decimal)
  kMicros,    // of microseconds: 12.3 us, 4.56 ms, 1.23 s
  kGflops,    // 12.3 GFLOP/s
  kGigabytesPerSecond,
  kTokensPerSecond,
};
std::string format_value(const Json& value, Unit unit);

// indent -1: on one line.  A path may be any bytes; what is not UTF-8 becomes U+FFFD.
std::string json_text(const Json& json, int indent);

struct Figure {
  std::string_view key;
  Json value;
  Unit unit = Unit::kPlain;
};

struct Column {
  std::string_view key;     // in the JSON of a row
  std::string_view header;  // as printed
  Unit unit = Unit::kPlain;
};

class Report {
 public:
  // "label   text", where {key} in text stands for a figure.  All figures, printed or not, go to
  // the JSON object `section`.
  void line(std::string_view section,
            std::string_view label,
            std::string_view text,
            const std::vector<Figure>& figures);
  // An empty line and words that hold no figure.
  void heading(std::string_view words);
  // Aligned columns; JSON: section.key = [{column: value, ...}, ...].
  void table(std::string_view section,
             std::string_view key,
             const std::vector<Column>& columns,
             const std::vector<std::vector<Json>>& rows);
  // In the JSON only.
  void hidden(std::string_view section, const Figure& figure);

  const std::string& text() const { return text_; }
  const Json& json() const { return json_; }

 private:
  std::string text_;
  Json json_ = Json::object();
};

}  // namespace moebius::app
