// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch is everything: layout, exchange of counts, rows in their final place.  On the stream its
// host waits for the counts; a graph holds the mode in which they stay on the device.
#include <array>

#include "app/bench/gpu/transport.h"

namespace moebius::bench {

namespace {

class HighThroughputOnGpu final : public GpuTransport {
 public:
  HighThroughputOnGpu(Group& group,
                      const GpuProblem& problem,
                      const std::vector<RankRows>& all,
                      const Stream& stream);

  std::vector<GpuTransfer> transfers() override;
  void check() const override { transport_.check(); }

 private:
  // Input and route of the calls that go by a stream, and of those in a graph.
  struct Side {
    DispatchInput input;
    std::shared_ptr<const DispatchHandle> handle;
  };

  const RankRows& own() const { return all_[static_cast<size_t>(rank_)]; }
  Side& side(GpuLaunch launch) { return sides_[static_cast<size_t>(launch)]; }
  Tensor up(const Tensor& tensor) const { return to_device(tensor, device_, stream_); }
  int64_t row_bytes() const;
  CombineInput given_back(const DispatchHandle& handle) const {
    return {contribution_.slice(0, handle.num_rows()), {}, {}, {}};
  }
  Difference received_difference() const {
    return dispatch_difference(problem_, all_, rank_, received_rows(output_, num_rows_, stream_));
  }

  const DispatchProblem& problem_;
  const std::vector<RankRows>& all_;
  int rank_;
  Device device_;
  Stream stream_;
  HighThroughput transport_;
  std::array<Side, 2> sides_;
  int64_t num_rows_ = 0;
  DispatchOutput output_;  // of the last dispatch
  Tensor contribution_;    // of this rank's experts, a row per row received; bf16 only
  Tensor combined_;
};

DispatchConfig with_sms(DispatchConfig config, int num_sms) {
  config.num_sms = num_sms > 0 ? num_sms : config.num_sms;
  return config;
}

HighThroughputOnGpu::HighThroughputOnGpu(Group& group,
                                         const GpuProblem& problem,
                                         const std::vector<RankRows>& all,
                                         const Stream& stream)
    : problem_(problem.routing),
      all_(all),
      rank_(group.rank()),
      device_(group.device()),
      stream_(stream),
      transport_(group,
                 problem_.placement(),
                 with_sms(DispatchConfig::for_dispatch(group.size(), device_), problem.num_sms),
                 with_sms(DispatchConfig::for_combine(group.size(), device_), problem.num_sms)) {
  Side& counted = side(GpuLaunch::kStream);
  for (const Tensor& payload : own().payloads) {
    counted.input.payloads.push_back(up(payload));
  }
  counted.input.topk_ids = up(own().topk_ids);
  counted.input.topk_weights = up(own().topk_weights);
  output_ = transport_.dispatch(counted.input, stream_);
  counted.handle = output_.handle;
  num_rows_ = counted.handle->num_rows();

  Side& roomy = side(GpuLaunch::kGraph);
  roomy.input = counted.input;
  roomy.input.capacity = all_reduce_max(group, "rows of a benchmark", num_rows_) + 1;
  roomy.handle = transport_.dispatch(roomy.input, stream_).handle;
  transport_.dispatch(roomy.input, stream_);  // one more bank of this size; none grows later

  if (problem.format == RowFormat::kBF16) {
    const Tensor rows = received_rows(output_, num_rows_, stream_).payloads[0];
    contribution_ = Tensor::zeros({roomy.input.capacity, problem_.hidden}, DType::kBF16, device_);
    copy(rank_contribution(rows, rank_, Stream::cpu(1)), contribution_.slice(0, num_rows_),
         stream_);
    combined_ = Tensor::zeros(own().payloads[0].shape(), DType::kBF16, device_);
    transport_.combine(given_back(*roomy.handle), *roomy.handle, stream_, combined_);
  }
  stream_.synchronize();
}

int64_t HighThroughputOnGpu::row_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& payload : own().payloads) {
    bytes += payload.nbytes() / payload.dim(0);
  }
  return bytes;
}

std::vector<GpuTransfer> HighThroughputOnGpu::transfers() {
  const RowCounts counts = count_rows(problem_, all_);
  const int64_t sent = row_bytes() * counts.most_sent(counts.copies, false);
  const int64_t given_back_bytes = row_bytes() * counts.most_received(counts.copies, false);
  const int64_t held = row_bytes() * counts.most_received(counts.copies, true);
  std::vector<GpuTransfer> list;
  for (const GpuLaunch launch : {GpuLaunch::kStream, GpuLaunch::kGraph}) {
    const Side& s = side(launch);
    const auto forget = [this] { output_ = {}; };  // its bank is for the next
    const auto received = [this] { return received_difference(); };
    list.push_back({"dispatch",
                    launch,
                    {forget, [this, &s] { output_ = transport_.dispatch(s.input, stream_); }, {}},
                    received,
                    sent,
                    held});
    list.push_back({"dispatch_cached",
                    launch,
                    {forget,
                     [this, &s] {
                       output_ = transport_.dispatch_cached(s.input.payloads, *s.handle, stream_);
                     },
                     {}},
                    received,
                    sent,
                    held});
    if (combined_) {
      list.push_back({"combine",
                      launch,
                      {{},
                       [this, &s] {
                         transport_.combine(given_back(*s.handle), *s.handle, stream_, combined_);
                       },
                       {}},
                      [this] {
                        return combine_difference(problem_, own(),
                                                  to_device(combined_, Device::cpu(), stream_));
                      },
                      given_back_bytes,
                      held});
    }
  }
  return list;
}

}  // namespace

std::unique_ptr<GpuTransport> make_gpu_high_throughput(Group& group,
                                                       const GpuProblem& problem,
                                                       const std::vector<RankRows>& all,
                                                       const Stream& stream) {
  return std::make_unique<HighThroughputOnGpu>(group, problem, all, stream);
}

}  // namespace moebius::bench
