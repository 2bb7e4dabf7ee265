// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Graph: what a call enqueues on a GPU, recorded once and launched as often as wanted for the price
// of one launch.  Which calls can be recorded is said by MoeLayer::can_be_captured().
#pragma once

#include <functional>
#include <memory>

#include "moebius/stream.h"

namespace moebius {

class Graph {
 public:
  // Calls `work`, which enqueues on the stream but runs nothing yet.  A launch repeats it on the
  // same addresses: tensors and workspaces it uses must stay, and stay large enough.  Launches must
  // be complete before a layer or transport that they use goes.
  // REQUIRES: work has been called twice before, so that kernels are loaded, and workspaces and
  // both sets of buffers that low latency uses in turn are there.  Ranks that share a GPU meet
  // (Group::barrier) between making their graphs and launching them.
  // Throws: what work throws, CudaError where it waits for the GPU, Unsupported on the CPU.
  Graph(const Stream& stream, const std::function<void()>& work);

  void launch() const;  // enqueues it once more, on the same stream

 private:
  Stream stream_;
  std::shared_ptr<void> executable_;
};

}  // namespace moebius
