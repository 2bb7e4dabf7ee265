// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a kernel's launcher asks of a device.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace moebius::cuda {

// Loads kernels (their addresses) on a device ahead of their first launch.  Why: loading may wait
// for the device to be idle, and never returns while another rank's kernel on it waits for this
// one.  Whoever makes an object whose kernels wait for peers calls it then.
void load_kernels(int index, std::initializer_list<const void*> kernels);

// Raises a kernel's limit of dynamic shared memory; loads it too.
void allow_shared_bytes(int index, const void* kernel, int64_t bytes);

int num_sms(int index);

}  // namespace moebius::cuda
