// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The transfers of one rank on its GPU in `bench dispatch --device cuda`, and the checks of their
// results.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/bench/gpu/clock.h"
#include "moebius/dispatch.h"
#include "moebius/low_latency.h"
#include "problems/dispatch_oracle.h"

namespace moebius::bench {

struct GpuTransfer {
  std::string name;  // "dispatch", "dispatch_cached", "combine", ...
  GpuLaunch launch = GpuLaunch::kStream;
  GpuWork work;
  std::function<Difference()> difference;  // checks the results of the last call
  int64_t wire_bytes = 0;    // of the rows that the rank that sends most sends to others
  int64_t deepep_bytes = 0;  // the bytes that DeepEP's tests divide by the time
};

// The part of a problem that is the same on all ranks.
struct GpuProblem {
  DispatchProblem routing;
  RowFormat format = RowFormat::kBF16;  // of rows on the way; low latency casts them there
  int num_sms = 0;                      // 0: the default
  // For low latency:
  LowLatencySum sum = LowLatencySum::kSelections;
  bool with_dispatch = true;  // false: combine only
};

struct GpuRankSetup {
  Group& group;
  const GpuProblem& problem;
  const std::vector<RankRows>& all;  // what each rank brings
  Stream stream;
};

// The transfers of one problem.  They use this object one after the other, in the order of
// transfers(), which is the same on every rank.
class GpuTransport {
 public:
  explicit GpuTransport(const GpuRankSetup& setup)
      : problem_(setup.problem.routing),
        all_(setup.all),
        rank_(setup.group.rank()),
        device_(setup.group.device()),
        stream_(setup.stream) {}
  virtual ~GpuTransport() = default;
  virtual std::vector<GpuTransfer> transfers() = 0;
  virtual void check() const = 0;  // throws the CommError that a kernel has met

 protected:
  const RankRows& own() const { return all_[static_cast<size_t>(rank_)]; }
  Tensor to_gpu(const Tensor& tensor) const { return to_device(tensor, device_, stream_); }
  Tensor to_host(const Tensor& tensor) const { return to_device(tensor, Device::cpu(), stream_); }

  const DispatchProblem& problem_;
  const std::vector<RankRows>& all_;
  int rank_;
  Device device_;
  Stream stream_;
};

// Collective.
std::unique_ptr<GpuTransport> make_gpu_high_throughput(const GpuRankSetup& setup);
std::unique_ptr<GpuTransport> make_gpu_low_latency(const GpuRankSetup& setup);

// Bytes of the window of each rank.
int64_t gpu_low_latency_bytes(const GpuProblem& problem);

}  // namespace moebius::bench
