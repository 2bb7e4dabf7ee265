// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// HighThroughput in a group of GPUs.
#pragma once

#include <memory>

#include "comm/high_throughput/transport.h"

namespace moebius::comm {

// The call is collective.  Throws Unsupported for a GPU that cannot be used, and in a build without
// CUDA.
std::unique_ptr<HighThroughput::State> make_cuda_high_throughput(Group& group,
                                                                 ExpertPlacement placement,
                                                                 const DispatchConfig& for_dispatch,
                                                                 const DispatchConfig& for_combine);

}  // namespace moebius::comm
