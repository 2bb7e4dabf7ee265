// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks of where operands are.
#pragma once

#include <string_view>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// Throws InvalidArgument for a tensor elsewhere: "device of ids is cpu, expected cuda:0".
void expect_on(const Tensor& tensor,
               Device device,
               std::string_view what,
               Where where = Where::current());
// Work on a GPU needs a stream of it; work on the CPU takes what threads a stream has.
void expect_stream(const Stream& stream, Device device, Where where = Where::current());

}  // namespace moebius
