// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DLPack: tensors in and out of other libraries without a copy.
//
// Types DLPack has no code for (fp8, packed 4- and 6-bit, e8m0) travel as uint8 bytes: the last
// dimension then counts bytes.  The receiver states the type, see `from_dlpack`.
#pragma once

#include <optional>

#include "moebius/tensor.h"

struct DLManagedTensor;  // <dlpack/dlpack.h>

namespace moebius {

// The caller owns the result and calls its deleter once; it keeps the storage alive until then.
// Exporting a borrowed tensor keeps nothing alive: the lender's promise still holds.
DLManagedTensor* to_dlpack(const Tensor& tensor);

// Takes ownership: the deleter runs when the last handle goes.  `as` reinterprets uint8 bytes as a
// type DLPack cannot name.  Throws InvalidArgument (not row-major, more than 4 dimensions, unknown
// type or device, size mismatch); the deleter has then been called.
Tensor from_dlpack(DLManagedTensor* managed, std::optional<DType> as = std::nullopt);

}  // namespace moebius
