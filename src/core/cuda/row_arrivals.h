// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel of RowArrivals::await_ids.
#pragma once

namespace moebius::cuda {

// Loads the kernel.  Loading may wait for the device, so this is called before kernels of this
// process wait for others.
void load_await_ids_kernel(int device_index);

}  // namespace moebius::cuda
