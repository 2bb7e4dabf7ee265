// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How values are printed, for those who name columns and know nothing of JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace moebius::app {

// How a number is printed.  Its JSON value is always the plain number, in the unit that its key
// ends with.
enum class Unit {
  kPlain,     // 42, or text, made printable
  kDecimals,  // 1.53
  kSmall,     // 1.53e-03
  kPercent,   // of a fraction: 12.3 %
  kBytes,     // 1.21 GB (decimal)
  kMicros,    // of microseconds: 12.3 us, 4.56 ms, 1.23 s
  kGflops,    // 12.3 GFLOP/s
  kGigabytesPerSecond,
  kTokensPerSecond,
};

struct Column {
  std::string_view key;     // in the JSON of a row
  std::string_view header;  // as printed
  Unit unit = Unit::kPlain;
};

// A value of a column or a fact; null where there is none.
using Value = std::variant<std::nullptr_t, bool, int64_t, double, std::string>;
std::string format_value(const Value& value, Unit unit);

}  // namespace moebius::app
