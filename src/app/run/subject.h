// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The lines of a report that say what was run: they are alike for one layer and for all of them.
#pragma once

#include <string>

#include "app/options.h"
#include "app/report/report.h"
#include "app/run/layer_input.h"
#include "app/run/rank_run.h"
#include "moebius/checkpoint.h"

namespace moebius::app {

void add_shape(Report& report, const ModelInfo& model);
void add_quantization(Report& report,
                      const RunOptions& options,
                      const ModelInfo& model,
                      const LayerRun& run);
void add_input(Report& report, const RunOptions& options, const LayerInput& input);
void add_implementations(Report& report, const RunOptions& options, const LayerRun& run);

// Returns a text such as "weights fp8 128x128, activations fp8 1x128".
std::string describe(const QuantConfig& quant);
// Returns a text such as "fp8 128x128", or the dtype of weights that are not quantized.
std::string describe_weights(const ExpertWeights& weights);

// A number for JSON, which has neither NaN nor infinity: those become text.
Json finite_or_text(double value);

}  // namespace moebius::app
