// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Payloads of a dispatch: tensors with one row per token, of any dtype and row shape.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moebius/tensor.h"

namespace moebius {

// The bytes of one row of each payload.  Throws InvalidArgument, naming the payload, unless each
// has num_tokens rows on `device`.
std::vector<int64_t> payload_row_bytes(std::span<const Tensor> payloads,
                                       int64_t num_tokens,
                                       Device device = {});

// The shape of a payload with another number of rows.
Shape with_rows(const Tensor& payload, int64_t rows);

}  // namespace moebius
