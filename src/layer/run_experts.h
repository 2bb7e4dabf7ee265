// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs experts on prepared rows: gets their workspaces, and cuts the rows into chunks so that the
// workspaces stay small.
#pragma once

#include <cstdint>

#include "moebius/experts.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

// The setting MOEBIUS_CHUNK_TOKENS, or 32768.
int64_t default_chunk_tokens();

// Rows [begin, end) of scales.  A single scale holds for all rows and is not sliced.
Tensor slice_scale(const Tensor& scale, int64_t begin, int64_t end);

// Whether run_experts() calls the experts once for all of so many rows: they are not cut into
// chunks, and there are some.
bool runs_once(const Experts& experts, int64_t rows, int64_t chunk_tokens);

// Returns the experts' output, which has the shape that workspace(rows) says.  It is `output`, or
// if that is undefined a tensor of the workspaces of context's micro-batch.
Tensor run_experts(const Experts& experts,
                   const ExpertsInput& input,
                   int64_t chunk_tokens,
                   const CallContext& context,
                   const Tensor& output = {});

}  // namespace moebius
