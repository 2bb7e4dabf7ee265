// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A GPU's stream for work of a call that goes on beside its own stream's.
#pragma once

#include "moebius/stream.h"

namespace moebius {

class SideStream {
 public:
  // Of that GPU, made when it is first needed.
  const Stream& on(Device gpu) {
    if (stream_.device() != gpu) {
      stream_ = Stream::cuda(gpu.index);
    }
    return stream_;
  }
  // What it has been given on that GPU comes before what `stream` is given from now on.
  void join(const Stream& stream) const {
    if (stream.device().is_cuda() && stream.device() == stream_.device()) {
      stream.wait(stream_.record());
    }
  }

 private:
  Stream stream_;  // a CPU's until it is needed
};

}  // namespace moebius
