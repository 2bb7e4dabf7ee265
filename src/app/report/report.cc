// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>

#include "core/printable.h"

namespace moebius::app {

namespace {

constexpr int kLabelWidth = 14;

// Writes the value in the largest unit in which it is at least 1.
std::string scaled(double value, double step, const std::vector<std::string_view>& units) {
  size_t unit = 0;
  while (unit + 1 < units.size() && value >= step) {
    value /= step;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}

std::string plain(const Json& value) {
  if (value.is_null()) {
    return "-";
  }
  return value.is_string() ? printable(value.get<std::string>()) : value.dump();
}

const Figure& find(const std::vector<Figure>& figures, std::string_view key) {
  const auto found =
      std::find_if(figures.begin(), figures.end(), [&](const Figure& f) { return f.key == key; });
  assert(found != figures.end());
  return *found;
}

std::string text_of(const Json& value, Unit unit) {
  if (!value.is_number()) {
    return plain(value);
  }
  const double number = value.get<double>();
  switch (unit) {
    case Unit::kPlain:
      return plain(value);
    case Unit::kDecimals:
      return fmt::format("{:.2f}", number);
    case Unit::kSmall:
      return fmt::format("{:.2e}", number);
    case Unit::kPercent:
      return fmt::format("{:.1f} %", number * 100);
    case Unit::kBytes:
      return number < 1000 ? fmt::format("{} B", plain(value))
                           : scaled(number / 1e3, 1e3, {"kB", "MB", "GB", "TB"});
    case Unit::kMicros:
      return scaled(number, 1e3, {"us", "ms", "s"});
    case Unit::kGflops:
      return scaled(number, 1e3, {"GFLOP/s", "TFLOP/s"});
    case Unit::kGigabytesPerSecond:
      return fmt::format("{:.2f} GB/s", number);
    case Unit::kTokensPerSecond:
      return fmt::format("{:.0f} tokens/s", number);
  }
  return plain(value);
}

std::string fill_in(std::string_view text, const std::vector<Figure>& figures) {
  std::string out;
  while (!text.empty()) {
    const size_t open = text.find('{');
    out += text.substr(0, open);
    if (open == std::string_view::npos) {
      break;
    }
    const size_t close = text.find('}', open);
    const Figure& figure = find(figures, text.substr(open + 1, close - open - 1));
    out += text_of(figure.value, figure.unit);
    text.remove_prefix(close + 1);
  }
  return out;
}

}  // namespace

Json json_of(const Value& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

std::string format_value(const Value& value, Unit unit) {
  return text_of(json_of(value), unit);
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

void Report::line(std::string_view section,
                  std::string_view label,
                  std::string_view text,
                  const std::vector<Figure>& figures) {
  text_ += fmt::format("{:<{}} {}\n", label, kLabelWidth, fill_in(text, figures));
  for (const Figure& figure : figures) {
    hidden(section, figure);
  }
}

void Report::heading(std::string_view words) {
  text_ += fmt::format("\n{}\n", words);
}

void Report::table(std::string_view section,
                   std::string_view key,
                   const std::vector<Column>& columns,
                   const std::vector<std::vector<Json>>& rows) {
  std::vector<std::vector<std::string>> cells(1);
  std::vector<bool> is_number(columns.size(), !rows.empty());
  for (const Column& column : columns) {
    cells[0].emplace_back(column.header);
  }
  Json array = Json::array();
  for (const auto& row : rows) {
    Json object = Json::object();
    std::vector<std::string> printed;
    for (size_t c = 0; c < columns.size(); ++c) {
      object[std::string(columns[c].key)] = row[c];
      printed.push_back(text_of(row[c], columns[c].unit));
      is_number[c] = is_number[c] && (row[c].is_number() || row[c].is_null());
    }
    array.push_back(std::move(object));
    cells.push_back(std::move(printed));
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& row : cells) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  for (const auto& row : cells) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      line += is_number[c] ? fmt::format("  {:>{}}", row[c], widths[c])
                           : fmt::format("  {:<{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text_ += line + '\n';
  }
  json_[std::string(section)][std::string(key)] = std::move(array);
}

void Report::hidden(std::string_view section, const Figure& figure) {
  json_[std::string(section)][std::string(figure.key)] = figure.value;
}

}  // namespace moebius::app
