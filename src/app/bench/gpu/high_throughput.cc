// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The transfers of high throughput.  A dispatch contains everything: layout, exchange of counts,
// and rows in their final place.  On a stream its host waits for the counts; in a graph the counts
// stay on the device.
#include <array>
#include <utility>

#include "app/bench/gpu/transport.h"

namespace moebius::bench {

namespace {

class HighThroughputOnGpu final : public GpuTransport {
 public:
  explicit HighThroughputOnGpu(const GpuRankSetup& setup);

  std::vector<GpuTransfer> transfers() override;
  void check() const override { transport_.check(); }

 private:
  // The input and route of calls on a stream, or of those in a graph.
  struct Side {
    DispatchInput input;
    std::shared_ptr<const DispatchHandle> handle;
  };

  Side& side(GpuLaunch launch) { return sides_[static_cast<size_t>(launch)]; }
  int64_t row_bytes() const;
  CombineInput given_back(const DispatchHandle& handle) const {
    return {contribution_.slice(0, handle.num_rows()), {}, {}, {}};
  }
  Difference received_difference() const {
    return dispatch_difference(problem_, all_, rank_, received_rows(output_, num_rows_, stream_));
  }

  HighThroughput transport_;
  std::array<Side, 2> sides_;
  int64_t num_rows_ = 0;
  DispatchOutput output_;  // of the last dispatch
  Tensor contribution_;    // what this rank's experts make of the received rows; bf16 only
  Tensor combined_;
};

DispatchConfig with_sms(DispatchConfig config, int num_sms) {
  config.num_sms = num_sms > 0 ? num_sms : config.num_sms;
  return config;
}

HighThroughputOnGpu::HighThroughputOnGpu(const GpuRankSetup& setup)
    : GpuTransport(setup),
      transport_(setup.group,
                 problem_.placement(),
                 with_sms(DispatchConfig::for_dispatch(problem_.num_ranks, device_),
                          setup.problem.num_sms),
                 with_sms(DispatchConfig::for_combine(problem_.num_ranks, device_),
                          setup.problem.num_sms)) {
  Side& counted = side(GpuLaunch::kStream);
  for (const Tensor& payload : own().payloads) {
    counted.input.payloads.push_back(to_gpu(payload));
  }
  counted.input.topk_ids = to_gpu(own().topk_ids);
  counted.input.topk_weights = to_gpu(own().topk_weights);
  output_ = transport_.dispatch(counted.input, stream_);
  counted.handle = output_.handle;
  num_rows_ = counted.handle->num_rows();

  Side& roomy = side(GpuLaunch::kGraph);
  roomy.input = counted.input;
  roomy.input.capacity = all_reduce_max(setup.group, "rows of a benchmark", num_rows_) + 1;
  roomy.handle = transport_.dispatch(roomy.input, stream_).handle;
  transport_.dispatch(
      roomy.input, stream_);  // makes the second bank large enough, too, so that none grows later

  if (setup.problem.format == RowFormat::kBF16) {
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
    const auto add_dispatch = [&](const char* name, std::function<void()> dispatch) {
      const auto forget = [this] { output_ = {}; };  // gives its bank to the next one
      list.push_back({name,
                      launch,
                      {forget, std::move(dispatch), {}},
                      [this] { return received_difference(); },
                      sent,
                      held});
    };
    add_dispatch("dispatch", [this, &s] { output_ = transport_.dispatch(s.input, stream_); });
    add_dispatch("dispatch_cached", [this, &s] {
      output_ = transport_.dispatch_cached({s.input.payloads}, *s.handle, stream_);
    });
    if (combined_) {
      const auto combine = [this, &s] {
        transport_.combine(given_back(*s.handle), *s.handle, stream_, combined_);
      };
      const auto difference = [this] {
        return combine_difference(problem_, own(), to_host(combined_));
      };
      list.push_back({"combine", launch, {{}, combine, {}}, difference, given_back_bytes, held});
    }
  }
  return list;
}

}  // namespace

std::unique_ptr<GpuTransport> make_gpu_high_throughput(const GpuRankSetup& setup) {
  return std::make_unique<HighThroughputOnGpu>(setup);
}

}  // namespace moebius::bench
