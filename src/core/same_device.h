// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks of the devices of operands and streams.
#pragma once

#include <string_view>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// Throws InvalidArgument for a tensor on another device: "device of ids is cpu, expected cuda:0".
void expect_on(const Tensor& tensor,
               Device device,
               std::string_view what,
               Where where = Where::current());
// Throws InvalidArgument when work on a GPU is given a stream of another device.  Work on the CPU
// may use any stream; it takes the number of threads from it.
void expect_stream(const Stream& stream, Device device, Where where = Where::current());

}  // namespace moebius
