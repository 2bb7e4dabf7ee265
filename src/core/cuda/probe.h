// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius::cuda {

// The address of a kernel that does nothing.  It can be loaded on a GPU that this build has code
// for.
const void* probe_kernel_address();

}  // namespace moebius::cuda
