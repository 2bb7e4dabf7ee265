// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius info --model`: what is in a checkpoint, what would compute it, or why nothing does.
#pragma once

#include <string>

#include "app/report/report.h"

namespace moebius::app {

// Reads config.json, the headers of all shards, and of each kind of layer an expert or two.
// Throws InvalidArgument where the folder has neither a config.json nor weights that can be read.
Report about_model(const std::string& directory);

}  // namespace moebius::app
