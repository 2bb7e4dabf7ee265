// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// Collective.  Every rank names ids, which are not negative, each once.  Returns those that all
// ranks name, in ascending order, and so the same on every rank.
std::vector<int64_t> common_ids(Group& group, std::string_view op, std::span<const int64_t> own);

}  // namespace moebius::comm
