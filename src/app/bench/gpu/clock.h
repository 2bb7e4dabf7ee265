// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GpuClock: how long a rank's GPU takes for what all ranks do together, by events right after a
// barrier of the GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <optional>

#include "app/bench/gpu/barrier.h"
#include "moebius/graph.h"
#include "moebius/group.h"
#include "moebius/stream.h"

namespace moebius::bench {

// What a rank enqueues on its stream.
struct GpuWork {
  std::function<void()> prepare;  // before the ranks meet; may be empty
  std::function<void()> body;     // what is timed
  std::function<void()> finish;   // after it; may be empty
  int repeats = 1;                // bodies in a row; the time of one is their mean
};

enum class GpuLaunch { kStream, kGraph };

class GpuClock {
 public:
  GpuClock(Group& group, const Stream& stream);  // collective
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  // Takes the place of the work before.  Captured at once where it goes by a graph: everything the
  // host does in it is done here, once.
  void set(GpuWork work, GpuLaunch launch);
  // Does it and waits for it; seconds of one body.
  double run();

 private:
  void enqueue(bool is_captured);

  GpuBarrier barrier_;
  Stream stream_;
  GpuWork work_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::optional<Graph> graph_;
};

}  // namespace moebius::bench
