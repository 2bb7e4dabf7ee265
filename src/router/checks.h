// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks of tensors that callers pass in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "moebius/tensor.h"

namespace moebius::router {

// Throws InvalidArgument when an element of the i32 or i64 tensor is outside [-1, bound).  The
// message names the first one: "ids[3, 1] is 12, expected -1 <= id < 8".
void expect_ids_below(const Tensor& ids, int64_t bound, std::string_view what);

// The name of an element, such as "gate[3, 17]".
std::string element_name(std::string_view what, const Shape& shape, int64_t index);

}  // namespace moebius::router
