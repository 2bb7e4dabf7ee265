// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The page that `moebius run --report` writes: one HTML file built from web/report, which draws
// itself from the run's JSON.
#pragma once

#include <string>

#include "app/report/report.h"
#include "moebius/support.h"

namespace moebius::app {

// Whether this build has the page.  If not, `reason` says how to get it.
Support has_page();

// Returns the page with the JSON of a run in it.  REQUIRES: has_page().
std::string make_page(const Json& run);

}  // namespace moebius::app
