// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that disagree on where experts live would send rows to ranks that take them for others, and
// sums would be wrong without a word.
#pragma once

#include <string_view>

#include "moebius/dispatch.h"

namespace moebius {

// Collective.  Throws InvalidArgument on every rank, with both values, where ranks give placements
// that differ.  `who`: for messages.
void expect_same_placement(Group& group, std::string_view who, const ExpertPlacement& placement);

}  // namespace moebius
