// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// From weights and options to the parts of a MoeLayer, each refused where it does not fit.
#pragma once

#include <memory>

#include "moebius/moe_layer.h"

namespace moebius {

// Fills what config leaves open.  group may be null (one rank).
void expect_consistent(MoeLayerWeights& weights,
                       const MoeLayerOptions& options,
                       const Group* group);

ExpertsDesc routed_desc(const MoeLayerWeights& weights, const MoeLayerOptions& options);

// Null without shared experts; takes their weights.
std::shared_ptr<const SharedExperts> make_shared_experts(MoeLayerWeights& weights,
                                                         const ExpertsDesc& routed,
                                                         const MoeLayerOptions& options,
                                                         const Stream& stream);

std::unique_ptr<PrepareFinalize> make_prepare_finalize(const MoeConfig& config,
                                                       const ExpertsDesc& routed,
                                                       const MoeLayerOptions& options,
                                                       Group* group);

}  // namespace moebius
