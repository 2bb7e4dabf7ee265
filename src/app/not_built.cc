// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/not_built.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "moebius/error.h"

namespace moebius::app {

namespace {

struct Limit {
  std::string_view option;
  // The value given when it is ahead of what stands ("" for a flag), nullopt when it is served.
  std::optional<std::string> (*beyond)(const RunOptions&);
  std::string_view stands;
};

template <auto Member>
std::optional<std::string> any_file(const RunOptions& o) {
  return (o.*Member).empty() ? std::nullopt : std::optional(o.*Member);
}

// Everything that waits for a later step.  Building a feature removes its line.
constexpr Limit kLimits[] = {
    {"--trace", any_file<&RunOptions::trace>, "--json has the time of each stage"},
};

}  // namespace

void refuse_not_built(const RunOptions& options) {
  for (const Limit& limit : kLimits) {
    if (const auto value = limit.beyond(options)) {
      throw Unsupported(fmt::format("{}{}{}: not built yet ({})", limit.option,
                                    value->empty() ? "" : " ", *value, limit.stands));
    }
  }
}

void refuse_plan() {
  throw Unsupported("plan: not built yet (moebius info --model DIR shows a checkpoint's shape)");
}

}  // namespace moebius::app
