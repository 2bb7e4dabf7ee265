// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DLPack: tensors in and out of other libraries without a copy.
//
// Types that DLPack has no code for (fp8, packed 4- and 6-bit types, e8m0, bool) travel as uint8
// bytes, and the last dimension then counts bytes.  The receiver states the type (see from_dlpack).
// Thread-safety: both functions may be called from any thread.
#pragma once

#include <optional>

#include "moebius/api.h"
#include "moebius/tensor.h"

struct DLManagedTensor;  // <dlpack/dlpack.h>

namespace moebius MOEBIUS_API {

// The caller owns the result and must call its deleter once; until then the result keeps the
// storage alive.  Storage of a borrowed tensor is not kept alive: its lender still has to do that.
// Throws InvalidArgument for an undefined tensor.
DLManagedTensor* to_dlpack(const Tensor& tensor);

// Takes ownership: the deleter runs when the last handle is destroyed.  `as` reinterprets uint8
// bytes as a type that DLPack cannot name.  Throws InvalidArgument (not row-major, more than 4
// dimensions, unknown type or device, sizes that do not match); the deleter has then been called.
Tensor from_dlpack(DLManagedTensor* managed, std::optional<DType> as = std::nullopt);

}  // namespace moebius
