// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel of RowArrivals::await_ids.
#pragma once

namespace moebius::cuda {

// Makes it resident: loading may synchronise, so not once a kernel of this process waits for
// others.
void load_await_ids_kernel(int device_index);

}  // namespace moebius::cuda
