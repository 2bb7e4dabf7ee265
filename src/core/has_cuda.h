// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

// Functions that exist only in a build with CUDA may be called inside `if constexpr (kHasCuda)`.
// REQUIRES: the target links the CUDA runtime when it is found.
#ifdef MOEBIUS_HAVE_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

}  // namespace moebius
