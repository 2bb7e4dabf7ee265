// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What every finalize does with the experts' rows before they travel back, or instead.
#pragma once

#include "moebius/prepare_finalize.h"

namespace moebius {

// The experts' rows weighted and reduced as below: expert_output itself where it is final, else on
// a workspace.
Tensor reduced_rows(const FinalizeInput& input,
                    const WeightAndReduce& when_delegated,
                    int64_t num_rows,
                    const CallContext& context);

// Weights and reduces input.expert_output into `output` by the experts' strategy, or by
// `when_delegated` where they leave the choice.  Throws InvalidArgument without a strategy.
void reduce_rows(const FinalizeInput& input,
                 const WeightAndReduce& when_delegated,
                 const Tensor& output,
                 const Stream& stream);

}  // namespace moebius
