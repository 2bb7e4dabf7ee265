// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/side_stream.h"

#include <map>
#include <utility>

namespace moebius {

const Stream& SideStream::on(Device gpu) {
  thread_local std::map<std::pair<Use, int>, Stream> streams;
  if (stream_.device() != gpu) {
    Stream& own = streams[{use_, gpu.index}];
    if (own.device() != gpu) {
      own = Stream::cuda(gpu.index);
    }
    stream_ = own;
  }
  return stream_;
}

void SideStream::join(const Stream& stream) const {
  if (stream.device().is_cuda() && stream.device() == stream_.device()) {
    stream.wait(stream_.record());
  }
}

}  // namespace moebius
