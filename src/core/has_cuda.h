// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

// What is defined only in a build with CUDA may be called inside `if constexpr (kHasCuda)`.  Of
// targets that link the CUDA runtime where it is found.
#ifdef MOEBIUS_HAVE_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

}  // namespace moebius
