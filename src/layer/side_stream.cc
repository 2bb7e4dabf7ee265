// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/side_stream.h"

#include <map>
#include <utility>

#include "core/device_traits.h"

namespace moebius {

const Stream& SideStream::of(const Stream& call) {
  const Device device = call.device();
  if (!is_apart_) {
    stream_ = call;
  } else {
    // Only here, since noting its destructor takes memory that the C library insists on.
    thread_local std::map<std::pair<Use, int>, Stream> streams;
    Stream& own = streams[{use_, device.index}];
    if (own.device() != device) {
      own = make_stream(device);
    }
    stream_ = own;
  }
  return stream_;
}

void SideStream::join(const Stream& stream) const {
  if (stream.device() == stream_.device()) {
    stream.wait(stream_.record());
  }
}

}  // namespace moebius
