// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Support: what an implementation answers when it is asked whether it can serve a description.
// Thread-safety: a value without shared state.
#pragma once

#include <string>
#include <utility>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

// "No" is an answer here and not an error.  `reason` then holds the values that decided, as in
// "hidden 7000 is not a multiple of 128".
struct Support {
  bool ok = true;
  std::string reason;

  static Support yes() { return {}; }
  static Support no(std::string why) { return {false, std::move(why)}; }
  explicit operator bool() const { return ok; }
};

}  // namespace moebius
