// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Traits and functions of devices for code that names no backend.
#pragma once

#include "moebius/stream.h"

namespace moebius {

struct DeviceTraits {
  // The host can read the device's memory, so values can be checked before a call.  On other
  // devices the check would have to wait.
  bool host_reads = true;
  // Calls enqueue their work, which goes on after they return, and streams run side by side.  On
  // other devices the work is done when a call returns.
  bool enqueues = false;
};
// The traits follow from the device's type; the device need not exist.
inline DeviceTraits device_traits(Device device) {
  return {.host_reads = device.is_cpu(), .enqueues = device.is_cuda()};
}

// The number of SMs of a GPU; 0 for the CPU.
int num_sms(Device device);

// A new stream of the device.
Stream make_stream(Device device);

// From now on, memory of the stream's device that this thread frees is not given to anybody before
// the present work of the stream is done.  The host does not wait.
void give_back_after(const Stream& stream);

}  // namespace moebius
