// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Functions that launchers of kernels call before a launch.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace moebius::cuda {

// Loads kernels, given by their addresses, on a device before their first launch.  Why: loading may
// wait until the device is idle, and would never return while a kernel of another rank waits there
// for this rank.  So an object whose kernels wait for peers calls this in its constructor.
void load_kernels(int index, std::initializer_list<const void*> kernels);
template <typename... Kernels>
void load_kernels(int index, Kernels*... kernels) {
  load_kernels(index, {reinterpret_cast<const void*>(kernels)...});
}

// Raises a kernel's limit of dynamic shared memory to at least `bytes`, and loads the kernel.
void allow_shared_bytes(int index, const void* kernel, int64_t bytes);

int num_sms(int index);

}  // namespace moebius::cuda
