// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MappedMemory: pinned host memory that a GPU loads and stores too, zero at first.
//
// For small things a kernel tells the host (counts, failure records).  The host reads what a kernel
// wrote with `volatile` or atomic loads, the kernel stores with .sys scope.
// Taking it may wait for the device: do so while no kernel waits for this rank.  Giving it back
// does not: it stays for the next taker.  REQUIRES: the last handle goes only after the work that
// uses the memory. In a build without CUDA only the declaration exists; nothing makes one there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace moebius::cuda {

class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(int64_t bytes, int index);

  int64_t bytes() const { return bytes_; }
  std::byte* host() const { return host_.get(); }
  std::byte* device() const { return device_; }
  template <typename T>
  T* host_as() const {
    return reinterpret_cast<T*>(host());
  }
  template <typename T>
  T* device_as() const {
    return reinterpret_cast<T*>(device());
  }

 private:
  std::shared_ptr<std::byte> host_;
  std::byte* device_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace moebius::cuda
