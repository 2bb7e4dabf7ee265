// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Graph: the work that a call enqueues on a GPU, recorded once and then launched any number of
// times at the price of one launch each.  MoeLayer::can_be_captured() tells which calls can be
// recorded.
// Thread-safety: one thread at a time.
#pragma once

#include <functional>
#include <memory>

#include "moebius/api.h"
#include "moebius/stream.h"

namespace moebius MOEBIUS_API {

class Graph {
 public:
  // Calls `work`, which enqueues on the stream; nothing of it runs yet.  A launch repeats the work
  // on the same addresses, so the tensors and workspaces that it uses must stay alive and large
  // enough.  Launches must be complete before a layer or transport that they use is destroyed.
  // REQUIRES: `work` has been called twice before.  Then kernels are loaded, and workspaces and
  // both buffers that low latency uses in turn are allocated.  Ranks that share a GPU call
  // Group::barrier between making their graphs and launching them.
  // Throws what `work` throws, CudaError when `work` waits for the GPU, and Unsupported on the CPU.
  Graph(const Stream& stream, const std::function<void()>& work);

  void launch() const;  // enqueues the work on the same stream; throws CudaError
  // Enqueues the work on another stream of that GPU, which the caller orders behind what the work
  // needs.  Throws CudaError, and InvalidArgument for a stream of another device.
  void launch(const Stream& stream) const;

 private:
  Stream stream_;
  std::shared_ptr<void> executable_;
};

}  // namespace moebius
