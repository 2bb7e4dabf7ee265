// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// Collective: of the ids each rank names (not negative, each once), those that every rank names, in
// ascending order and so the same for all.
std::vector<int64_t> common_ids(Group& group, std::string_view op, std::span<const int64_t> own);

}  // namespace moebius::comm
