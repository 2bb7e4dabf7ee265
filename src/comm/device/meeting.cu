// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <utility>

#include "comm/device/meeting.h"
#include "comm/device/signals.cuh"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

constexpr int kThreads = 128;

// A window has the signals [R] of the ranks, and then their abort words [R].
__device__ uint64_t* signal_of(const SignalContext& context, int owner, int author) {
  return reinterpret_cast<uint64_t*>(context.windows[owner]) + author;
}

// One block, a thread per peer.  The kernels before it in the stream have ended, so publish()
// covers what they have stored.
__global__ void __launch_bounds__(kThreads)
    meet_kernel(const __grid_constant__ SignalContext context, uint32_t* epoch) {
  const uint32_t own_epoch = *epoch + 1;
  for (int peer = static_cast<int>(threadIdx.x); peer < context.num_ranks; peer += kThreads) {
    if (peer != context.rank) {
      publish(signal_of(context, peer, context.rank), own_epoch, 0);
    }
  }
  for (int peer = static_cast<int>(threadIdx.x); peer < context.num_ranks; peer += kThreads) {
    uint64_t seen = 0;
    if (peer != context.rank && !await_signal(context, SignalOp::kMeeting, own_epoch, peer,
                                              signal_of(context, context.rank, peer), &seen)) {
      break;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *epoch = own_epoch;
  }
}

}  // namespace

int64_t Meeting::window_bytes(int num_ranks) {
  return 2 * num_ranks * static_cast<int64_t>(sizeof(uint64_t));
}

Meeting::Meeting(Group& host, Device device, std::unique_ptr<Window> window)
    : window_(std::move(window)),
      record_(sizeof(FaultRecord), device.index),
      epoch_(Tensor::zeros({1}, DType::kI32, device)) {
  signals_.rank = host.rank();
  signals_.num_ranks = host.size();
  signals_.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(host.timeout()).count());
  signals_.record = record_.device_as<FaultRecord>();
  for (int rank = 0; rank < host.size(); ++rank) {
    signals_.windows[rank] = window_->peer(rank);
  }
  signals_.abort_at = window_bytes(host.size()) / 2;
  cuda::load_kernels(device.index, meet_kernel);
  host.barrier("kernels of a meeting are loaded");
}

Meeting::~Meeting() {
  std::atomic_ref(record_.host_as<FaultRecord>()->stop).store(1);
}

void Meeting::enqueue(const Stream& stream) {
  const cuda::DeviceGuard guard(stream);
  meet_kernel<<<1, kThreads, 0, cuda::as_stream(stream)>>>(signals_,
                                                           static_cast<uint32_t*>(epoch_.raw()));
  cuda::check_launch("meet_kernel");
}

bool Meeting::has_failed() const {
  return std::atomic_ref(record_.host_as<FaultRecord>()->fault).load() != 0;
}

}  // namespace moebius::comm
