// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/group.h"
#include "moebius/support.h"

namespace moebius::comm {

// Whether CUDA graphs can hold exchanges between the GPUs of a group (Group::exchange_on) and what
// is made of them.  All ranks then record their graphs together, and launch them in one order.
Support can_capture_exchanges(const Group& group);

}  // namespace moebius::comm
