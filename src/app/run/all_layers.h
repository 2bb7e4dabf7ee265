// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius run --all-layers`: loads, runs and frees every MoE layer of a model, one after the
// other, so that there is room for one of them only.
#pragma once

#include "app/options.h"

namespace moebius::app {

// Returns an exit code: kCheckFailed where a check fails or an output is not finite.
int run_all_layers(const RunOptions& options);

}  // namespace moebius::app
