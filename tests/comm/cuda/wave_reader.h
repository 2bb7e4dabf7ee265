// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the rows of a dispatch wave by wave, as soon as they may be read.
#pragma once

#include "moebius/dispatch.h"

namespace moebius::testing {

// Enqueues a copy of the first payload on the stream, and returns it.
// REQUIRES: output.arrivals, and rows of whole 4-byte words.
Tensor read_by_waves(const DispatchOutput& output, const Stream& stream);

}  // namespace moebius::testing
