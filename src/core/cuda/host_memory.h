// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MappedMemory: pinned host memory, initially zero, that a GPU can load and store, too.
//
// Kernels use it to report small things to the host, such as counts and failure records.  A kernel
// stores with .sys scope, and the host reads with `volatile` or atomic loads.
// Allocating may wait for the device, so allocate while no kernel waits for this rank.  Freeing
// does not wait, because the memory is kept for the next allocation.
// REQUIRES: the last handle is destroyed after the work that uses the memory.
// A build without CUDA has only the declaration.
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
