// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes the parts of a MoeLayer from weights and options, and refuses what does not fit.
#pragma once

#include <memory>

#include "moebius/moe_layer.h"

namespace moebius {

// Throws InvalidArgument where weights, options, group and the caller's parts do not fit each
// other, and, on all ranks, where these place experts differently. Fills in what weights.config
// leaves open.  A null group stands for one rank, or for ranks that the caller's prepare/finalize
// connects.  Collective with a group.
void expect_consistent(MoeLayerWeights& weights,
                       const MoeLayerOptions& options,
                       Group* group,
                       const MoeLayerParts& parts);

// Throws InvalidArgument for options that no call of this backend can follow.
void expect_fits_backend(const KernelOptions& options, All2AllBackend backend, bool has_capacity);

// The desc of the experts that the layer makes, or of the caller's, which must be like it.
ExpertsDesc routed_desc(const MoeLayerWeights& weights,
                        const MoeLayerOptions& options,
                        const MoeLayerParts& parts = {});

// Null where there are no weights of a router.
std::shared_ptr<Router> make_router(MoeLayerWeights& weights, Device device);

// Takes the weights of the shared experts.  Null where there are none.
std::shared_ptr<SharedExperts> make_shared_experts(MoeLayerWeights& weights,
                                                   const ExpertsDesc& routed,
                                                   const MoeLayerOptions& options,
                                                   const Stream& stream);

// Which experts live where.
ExpertPlacement placement_of(const MoeLayerWeights& weights);

std::unique_ptr<PrepareFinalize> make_prepare_finalize(const MoeLayerWeights& weights,
                                                       const ExpertsDesc& routed,
                                                       const MoeLayerOptions& options,
                                                       Group* group);

}  // namespace moebius
