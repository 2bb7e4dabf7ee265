// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a block of a high-throughput dispatch knows, and where it keeps this.
#pragma once

#include "comm/device/grid.cuh"
#include "comm/device/signals.cuh"
#include "comm/high_throughput/cuda/kernels.h"

namespace moebius::comm::high_throughput_dispatch {

inline constexpr int kWarp = kWarpLanes;

struct Block {
  const DispatchArgs& args;
  std::byte* shared;
  uint32_t epoch;
  int64_t begin, end;  // its tokens

  __device__ int rank() const { return args.signals.rank; }
  __device__ int num_ranks() const { return args.signals.num_ranks; }
  __device__ bool is_cached() const { return args.is_cached; }
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ SignalOp op() const {
    return is_cached() ? SignalOp::kCachedDispatch : SignalOp::kDispatch;
  }

  template <typename T>
  __device__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(shared + offset);
  }
  __device__ std::byte* stage(int i) const {
    return shared + (warp() * args.shared.stages + i) * args.shared.stage_bytes;
  }
  __device__ uint64_t* barrier(int i) const {
    return at<uint64_t>(args.shared.barriers()) + warp() * args.shared.stages + i;
  }
  __device__ uint64_t* field_base(int field) const {
    return at<uint64_t>(args.shared.field_base()) + field * num_ranks();
  }
  __device__ uint32_t* notice(int source) const {
    return at<uint32_t>(args.shared.notices()) + source * num_notice_words();
  }
  __device__ uint32_t* row_base() const { return at<uint32_t>(args.shared.row_base()); }
  __device__ uint32_t* total_rows() const { return at<uint32_t>(args.shared.total_rows()); }
  __device__ uint32_t* running() const { return at<uint32_t>(args.shared.running()); }
  __device__ uint32_t* warp_counts() const { return at<uint32_t>(args.shared.warp_counts()); }
  __device__ uint32_t* histogram() const { return at<uint32_t>(args.shared.histogram()); }
  __device__ uint32_t* waves_sent() const { return at<uint32_t>(args.shared.waves_sent()); }
  // A bit for each of 32 tokens of this warp: it has copies in the wave.
  __device__ uint32_t& due(int wave, int chunk) const {
    return at<uint32_t>(args.shared.due())[(warp() * kWaves + wave) * kWaveChunks + chunk];
  }

  // The words of a notice that every rank gets.
  __device__ int num_notice_words() const { return ControlLayout::kCopies + num_ranks(); }
  // A word of the notice of `source` in `owner`'s window.
  __device__ uint64_t* notice_word(int owner, int source, int word) const {
    return reinterpret_cast<uint64_t*>(args.signals.windows[owner] +
                                       args.control_layout.notice(epoch, source)) +
           word;
  }
  __device__ uint64_t* done(int owner, int source) const {
    return reinterpret_cast<uint64_t*>(args.signals.windows[owner] +
                                       args.control_layout.done(source));
  }
  __device__ uint64_t* arrived(int owner, int wave, int source) const {
    return reinterpret_cast<uint64_t*>(args.signals.windows[owner] +
                                       args.control_layout.arrived(wave, source));
  }
};

}  // namespace moebius::comm::high_throughput_dispatch
