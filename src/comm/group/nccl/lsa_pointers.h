// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

#include "moebius/device.h"

namespace moebius::comm {

// The addresses at which this GPU reaches the window's memory of each rank of its node.
std::vector<std::byte*> lsa_pointers(ncclWindow_t window, int num_ranks, Device device);

}  // namespace moebius::comm
