// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks of tensors that come from outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "moebius/tensor.h"

namespace moebius::router {

// Every element of the i32 tensor must be in [-1, bound).  Throws InvalidArgument naming the first
// that is not: "ids[3, 1] is 12, expected -1 <= id < 8".
void expect_ids_below(const Tensor& ids, int64_t bound, std::string_view what);

// "gate[3, 17]" for an element of a tensor.
std::string element_name(std::string_view what, const Shape& shape, int64_t index);

}  // namespace moebius::router
