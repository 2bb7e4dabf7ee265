// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Meeting: GPUs of ranks wait for each other in the order of their streams.  Unlike events, which a
// graph would find recorded by an earlier launch, it counts how often ranks have met, so that
// graphs can hold it.
// Thread-safety: one thread at a time; enqueue() calls of all ranks are in the same order.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/device/signals.h"
#include "core/cuda/host_memory.h"
#include "moebius/group.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::comm {

class Meeting {
 public:
  // The bytes of a window that a meeting of so many ranks needs.
  static int64_t window_bytes(int num_ranks);
  // Collective.  `window` is of these bytes, zero, and reachable from the GPU of every rank.
  Meeting(Group& host, Device device, std::unique_ptr<Window> window);
  ~Meeting();  // ends kernels that still wait
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Enqueues a wait for what every rank has enqueued before its own call.  A rank that does not
  // come within the timeout ends the wait, and all later ones; see has_failed().
  void enqueue(const Stream& stream);
  // Whether a wait has ended early, so that what came after it may be wrong.
  bool has_failed() const;

 private:
  std::unique_ptr<Window> window_;
  cuda::MappedMemory record_;
  Tensor epoch_;  // i32 [1] on the device: how often ranks have met
  SignalContext signals_;
};

}  // namespace moebius::comm
