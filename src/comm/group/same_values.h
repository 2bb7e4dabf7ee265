// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "moebius/group.h"

namespace moebius {

// A value of which every rank must give the same.
struct SameValue {
  std::string_view name;
  int64_t value;
  std::string (*text)(int64_t value) = [](int64_t v) { return std::to_string(v); };
};

// Collective, with the same names on all ranks.  Throws InvalidArgument on every rank, with both
// values, for the first that a rank gives otherwise than rank 0.  `who`: for messages.
void expect_same_values(Group& group,
                        std::string_view op,
                        std::string_view who,
                        std::initializer_list<SameValue> own);

}  // namespace moebius
