// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Outputs that lie where inputs do.
#pragma once

#include <string_view>

#include "moebius/tensor.h"

namespace moebius {

// Whether two tensors have memory in common.  A tensor that is undefined has none.
bool overlap(const Tensor& a, const Tensor& b);

// Throws InvalidArgument where an output has memory in common with an input that is read while the
// output is written.
void expect_apart(const Tensor& output,
                  const Tensor& input,
                  std::string_view output_is,
                  std::string_view input_is);

}  // namespace moebius
