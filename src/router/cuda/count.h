// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// count_expert_tokens() on a GPU.  The arguments are validated, and the host does not wait.
#pragma once

#include "core/forward.h"

namespace moebius::router {

// Throws Unsupported in a build without CUDA.
void cuda_count_expert_tokens(const Tensor& ids,
                              const Tensor& expert_map,
                              const Tensor& out,
                              const Stream& stream);

}  // namespace moebius::router
