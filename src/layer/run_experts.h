// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs experts on prepared rows: asks for workspaces, and splits the rows into chunks so that the
// workspaces stay small.
#pragma once

#include <cstdint>

#include "moebius/experts.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

// MOEBIUS_CHUNK_TOKENS, or 32768.
int64_t default_chunk_tokens();

// Rows [begin, end) of scales; a single scale holds for all rows and is not sliced.
Tensor slice_scale(const Tensor& scale, int64_t begin, int64_t end);

// Output of the experts (shape of workspace(rows)): `output`, or on a workspace of context's
// micro-batch where that is undefined.
Tensor run_experts(const Experts& experts,
                   const ExpertsInput& input,
                   int64_t chunk_tokens,
                   const CallContext& context,
                   const Tensor& output = {});

}  // namespace moebius
