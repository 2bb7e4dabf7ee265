// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius::cuda {

// A kernel that does nothing: whether it can be loaded tells whether this build has code for a GPU.
const void* probe_kernel_address();

}  // namespace moebius::cuda
