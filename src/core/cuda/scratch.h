// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Scratch: device memory that lives from one point of a stream to a later one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moebius/stream.h"

namespace moebius::cuda {

// Taken and given back in the order of the stream's work, so the host waits for nothing and the
// handle may go as soon as the work that uses it is enqueued.  Contents are undefined at first.
class Scratch {
 public:
  Scratch(int64_t bytes, const Stream& stream);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Stream stream_;
  void* data_ = nullptr;
};

}  // namespace moebius::cuda
