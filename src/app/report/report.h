// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Report: the text that a command prints, and the same figures as JSON.
// Invariant: the text is made from the values that the JSON holds, so the JSON has every printed
// figure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "app/report/column.h"

namespace moebius::app {

using Json = nlohmann::ordered_json;

Json json_of(const Value& value);

// Returns JSON as text; with an indent of -1 it is one line.  Bytes that are not UTF-8, as paths
// may have, become U+FFFD.
std::string json_text(const Json& json, int indent);

struct Figure {
  std::string_view key;
  Json value;
  Unit unit = Unit::kPlain;
};

class Report {
 public:
  // Prints "label   text", where {key} in text stands for a figure.  All figures, printed or not,
  // go to the JSON object `section`.
  void line(std::string_view section,
            std::string_view label,
            std::string_view text,
            const std::vector<Figure>& figures);
  // Prints an empty line and words that hold no figure.
  void heading(std::string_view words);
  // Prints aligned columns.  In the JSON: section.key = [{column: value, ...}, ...].
  void table(std::string_view section,
             std::string_view key,
             const std::vector<Column>& columns,
             const std::vector<std::vector<Json>>& rows);
  // Puts a figure into the JSON only.
  void hidden(std::string_view section, const Figure& figure);

  const std::string& text() const { return text_; }
  const Json& json() const { return json_; }

 private:
  std::string text_;
  Json json_ = Json::object();
};

}  // namespace moebius::app
