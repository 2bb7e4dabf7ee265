// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel of RowArrivals::await_ids.
#pragma once

namespace moebius::comm {

// Makes it resident; as load_dispatch_kernels.
void load_await_ids_kernel(int device_index);

}  // namespace moebius::comm
