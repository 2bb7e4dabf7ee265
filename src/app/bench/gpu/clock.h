// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GpuClock: measures how long a rank's GPU takes for what all ranks do together.  It records an
// event right after a barrier between the GPUs, and one at the end.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <optional>

#include "app/bench/gpu/barrier.h"
#include "moebius/graph.h"
#include "moebius/group.h"
#include "moebius/stream.h"

namespace moebius::bench {

// The work that a rank enqueues on its stream.
struct GpuWork {
  std::function<void()> prepare;  // done before the ranks meet; may be empty
  std::function<void()> body;     // the part that is timed
  std::function<void()> finish;   // done after it; may be empty
  int repeats = 1;                // bodies in a row; the time of one is their mean
};

enum class GpuLaunch { kStream, kGraph };

class GpuClock {
 public:
  GpuClock(Group& group, const Stream& stream);  // collective
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  // Replaces the previous work.  With kGraph the work is recorded here, so that everything that the
  // host does in it happens once, now.
  void set(GpuWork work, GpuLaunch launch);
  // Does the work, waits for its end and returns the seconds of one body.
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
