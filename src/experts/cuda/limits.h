// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/experts.h"
#include "moebius/support.h"

namespace moebius::cuda {

// Whether the experts on GPUs take experts of these sizes.  It does not depend on this machine, so
// one without a GPU can ask, too.
Support within_limits(const ExpertsDesc& desc);

}  // namespace moebius::cuda
