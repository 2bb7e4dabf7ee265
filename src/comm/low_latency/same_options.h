// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks make a LowLatency with the same options, or none does.
#pragma once

#include "moebius/low_latency.h"

namespace moebius {

// Collective.  Throws InvalidArgument on every rank, with both values, where ranks give different
// options or placements.
void expect_same_options(Group& group,
                         const ExpertPlacement& placement,
                         const LowLatencyOptions& options);

}  // namespace moebius
