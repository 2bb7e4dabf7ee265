// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Options that the command knows by name and cannot serve yet.
#pragma once

#include "app/options.h"

namespace moebius::app {

// Throws Unsupported "--ranks 4: not built yet (...)" for the first option that is ahead of what
// stands; to be called before any work.
void refuse_not_built(const RunOptions& options);
[[noreturn]] void refuse_plan();

}  // namespace moebius::app
