// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/gpu/clock.h"

#include <utility>

#include "core/cuda/check.h"

namespace moebius::bench {

using cuda::check_cuda;

namespace {

// How long a host may take to enqueue a body.  A graph needs no such time, since it is launched at
// once.
constexpr std::chrono::microseconds kLead{100};

}  // namespace

GpuClock::GpuClock(Group& group, const Stream& stream) : barrier_(group), stream_(stream) {
  check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
}

GpuClock::~GpuClock() {
  graph_.reset();
  cuda::log_cuda_error(cudaEventDestroy(begin_), "cudaEventDestroy");
  cuda::log_cuda_error(cudaEventDestroy(end_), "cudaEventDestroy");
}

void GpuClock::set(GpuWork work, GpuLaunch launch) {
  graph_.reset();
  work_ = std::move(work);
  if (launch == GpuLaunch::kGraph) {
    graph_.emplace(stream_, [this] { enqueue(true); });
  }
}

void GpuClock::enqueue(bool is_captured) {
  const auto stream = cuda::as_stream(stream_);
  // Why external: without it an event in a graph would only order the graph and record no time.
  const unsigned flags = is_captured ? cudaEventRecordExternal : cudaEventRecordDefault;
  if (work_.prepare) {
    work_.prepare();
  }
  barrier_.launch(stream_, is_captured ? std::chrono::microseconds{0} : kLead);
  check_cuda(cudaEventRecordWithFlags(begin_, stream, flags), "cudaEventRecordWithFlags");
  for (int i = 0; i < work_.repeats; ++i) {
    work_.body();
  }
  check_cuda(cudaEventRecordWithFlags(end_, stream, flags), "cudaEventRecordWithFlags");
  if (work_.finish) {
    work_.finish();
  }
}

double GpuClock::run() {
  if (graph_) {
    graph_->launch();
  } else {
    enqueue(false);
  }
  stream_.synchronize();
  float ms = 0.0f;
  check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e-3 / work_.repeats;
}

}  // namespace moebius::bench
