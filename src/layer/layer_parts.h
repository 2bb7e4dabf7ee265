// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes the parts of a MoeLayer from weights and options, and refuses what does not fit.
#pragma once

#include <memory>

#include "moebius/moe_layer.h"

namespace moebius {

// Throws InvalidArgument where weights, options and group do not fit each other.  Fills in what
// weights.config leaves open.  A null group stands for one rank.
void expect_consistent(MoeLayerWeights& weights,
                       const MoeLayerOptions& options,
                       const Group* group);

ExpertsDesc routed_desc(const MoeLayerWeights& weights, const MoeLayerOptions& options);

// Takes the weights of the shared experts.  Null where there are none.
std::shared_ptr<const SharedExperts> make_shared_experts(MoeLayerWeights& weights,
                                                         const ExpertsDesc& routed,
                                                         const MoeLayerOptions& options,
                                                         const Stream& stream);

std::unique_ptr<PrepareFinalize> make_prepare_finalize(const MoeConfig& config,
                                                       const ExpertsDesc& routed,
                                                       const MoeLayerOptions& options,
                                                       Group* group);

}  // namespace moebius
