// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The error of calls on a group whose has_given_up() is true.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "moebius/error.h"
#include "moebius/group.h"

namespace moebius::comm {

[[noreturn]] inline void throw_given_up(const Group& group, std::string_view op) {
  throw CommError(fmt::format("rank {}: {}: the exchange between GPUs did not end within {} ms and "
                              "was given up; what has come is not complete",
                              group.rank(), op, group.timeout().count()),
                  group.rank(), group.rank());
}

}  // namespace moebius::comm
