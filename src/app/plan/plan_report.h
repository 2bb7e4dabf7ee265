// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The result of `moebius plan`, and its report.
#pragma once

#include <string>
#include <vector>

#include "app/report/report.h"
#include "plan/forecast.h"

namespace moebius::app {

struct PlanResult {
  plan::Deployment deployment;
  plan::Machine machine;
  std::vector<plan::Forecast> forecasts;
  std::string sweep;  // "ranks", "tokens" or empty
  std::vector<plan::SweepRow> rows;
};

Report make_report(const PlanResult& result);

}  // namespace moebius::app
