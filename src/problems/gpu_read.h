// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

// Enqueues reading a tensor of zeros, whose bytes are a multiple of 16, in order and as fast as the
// GPU can.
void read_zeros(const Tensor& zeros, const Stream& stream);

}  // namespace moebius::bench
