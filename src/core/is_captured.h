// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/cuda/runtime.h"
#include "moebius/stream.h"

namespace moebius {

// Whether what the stream is given goes into a graph.
inline bool is_captured(const Stream& stream) {
  const Device device = stream.device();
  return device.is_cuda() && cuda::capture_id(stream.native_handle(), device.index) != 0;
}

}  // namespace moebius
