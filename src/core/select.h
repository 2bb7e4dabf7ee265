// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Chooses an implementation from a stage's list: the first that accepts, or the forced one.
#pragma once

#include <string>
#include <string_view>

#include "moebius/error.h"
#include "moebius/log.h"
#include "moebius/settings.h"
#include "moebius/support.h"

namespace moebius {

// `impls` is a range of structs with a `name`, and supports(impl) returns a Support.  `forced` wins
// over the setting (MOEBIUS_<STAGE>); when both are empty, the first implementation that accepts is
// chosen.
// Throws InvalidArgument (unknown name; the message lists the known ones) or Unsupported (the
// message has all refusals).
template <typename Impls, typename Supports>
const auto& select_impl(const Impls& impls,
                        std::string_view stage,
                        std::string_view setting_name,
                        std::string_view forced,
                        Supports supports) {
  std::string wanted(forced);
  if (wanted.empty()) {
    wanted = setting(setting_name).value_or("");
  }
  std::string known;
  std::string refusals;
  for (const auto& impl : impls) {
    known += (known.empty() ? "" : ", ") + std::string(impl.name);
    if (!wanted.empty() && impl.name != wanted) {
      continue;
    }
    const Support support = supports(impl);
    if (support.ok) {
      log_topic("dispatch", std::string(stage) + ": " + std::string(impl.name));
      return impl;
    }
    log_topic("dispatch",
              std::string(stage) + ": not " + std::string(impl.name) + ": " + support.reason);
    refusals += (refusals.empty() ? "" : "; ") + std::string(impl.name) + ": " + support.reason;
  }
  if (!wanted.empty() && refusals.empty()) {
    throw InvalidArgument("no " + std::string(stage) + " implementation is named " + wanted +
                          " (there are " + known + ")");
  }
  throw Unsupported("no " + std::string(stage) + " implementation accepts this: " + refusals);
}

}  // namespace moebius
