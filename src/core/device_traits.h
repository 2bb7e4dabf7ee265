// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What code that names no backend asks of a device and has it do.
#pragma once

#include "moebius/stream.h"

namespace moebius {

struct DeviceTraits {
  // The host reads its memory, so values can be checked before a call; elsewhere that would wait.
  bool host_reads = true;
  // Work is enqueued and goes on behind the call, on streams beside each other; elsewhere it is
  // done when the call returns.
  bool enqueues = false;
};
// By its type: the device need not exist.
inline DeviceTraits device_traits(Device device) {
  return {.host_reads = device.is_cpu(), .enqueues = device.is_cuda()};
}

// That kernels of the device run on; 0 where it is the host.
int num_sms(Device device);

// A new stream of the device.
Stream make_stream(Device device);

// Nobody is given what this thread gives back of the memory of the stream's device from now on
// before the stream's work until now is done.  The host does not wait.
void give_back_after(const Stream& stream);

}  // namespace moebius
