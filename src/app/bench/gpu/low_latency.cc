// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The transfers of low latency: whole calls, their halves, and dispatch and combine back to back.
#include <algorithm>

#include "app/bench/gpu/transport.h"

namespace moebius::bench {

namespace {

constexpr int64_t kLeastMaxTokens = 128;
constexpr int kPairs = 20;  // of a dispatch and a combine, back to back

class LowLatencyOnGpu final : public GpuTransport {
 public:
  explicit LowLatencyOnGpu(const GpuRankSetup& setup);

  std::vector<GpuTransfer> transfers() override;
  void check() const override { transport_.check(); }

 private:
  LowLatencyDispatchOutput received_rows() const;

  void dispatch() { received_ = transport_.dispatch({x_, ids_, cast_}, stream_); }
  void send() { pending_ = transport_.dispatch_async({x_, ids_, cast_}, stream_); }
  void receive() { received_ = pending_.receive(); }
  void combine() {
    transport_.combine({y_, ids_, weights_}, *received_.handle, stream_, combined_);
  }
  void send_back() {
    pending_back_ =
        transport_.combine_async({y_, ids_, weights_}, *received_.handle, stream_, combined_);
  }
  void receive_back() { pending_back_.receive(); }
  void forget() {
    pending_back_ = {};
    pending_ = {};
    received_ = {};
  }

  LowLatencyCast cast_;
  LowLatencySum sum_;
  bool with_dispatch_;
  LowLatency transport_;
  Tensor x_, ids_, weights_;
  Tensor y_;  // what this rank's experts return, in the batched format
  Tensor combined_;
  LowLatencyDispatchOutput received_;
  Pending<LowLatencyDispatchOutput> pending_;
  Pending<LowLatencyCombineOutput> pending_back_;
};

LowLatencyOptions options_of(const GpuProblem& problem) {
  LowLatencyOptions options;
  options.max_tokens = std::max(kLeastMaxTokens, problem.routing.tokens);
  options.hidden = problem.routing.hidden;
  options.topk = problem.routing.topk;
  options.num_sms = problem.num_sms;
  options.sum = problem.sum;
  return options;
}

LowLatencyOnGpu::LowLatencyOnGpu(const GpuRankSetup& setup)
    : GpuTransport(setup),
      cast_(setup.problem.format == RowFormat::kFp8 ? LowLatencyCast::kFp8 : LowLatencyCast::kNone),
      sum_(setup.problem.sum),
      with_dispatch_(setup.problem.with_dispatch),
      transport_(setup.group, problem_.placement(), options_of(setup.problem)),
      x_(to_gpu(own().payloads[0])),
      ids_(to_gpu(own().topk_ids)),
      weights_(to_gpu(own().topk_weights)),
      combined_(Tensor::zeros(x_.shape(), DType::kBF16, device_)) {
  // y_ is made from rows that were not cast, so that the sums are known without the cast.
  received_ = transport_.dispatch({x_, ids_, LowLatencyCast::kNone}, stream_);
  const LowLatencyDispatchOutput rows = received_rows();
  const Tensor made = expert_contribution(problem_, rank_, rows);
  y_ = Tensor::zeros(received_.x.shape(), DType::kBF16, device_);
  for (int64_t l = 0; l < made.dim(0); ++l) {
    copy(made[l], y_[l].slice(0, made.dim(1)), stream_);
  }
  for (int place = 0; place < 2; ++place) {  // makes the tensors of both results
    dispatch();
    forget();
  }
  stream_.synchronize();
}

// Copies the rows that were received, and no others, to the CPU: [L, most rows of an expert, ...].
LowLatencyDispatchOutput LowLatencyOnGpu::received_rows() const {
  LowLatencyDispatchOutput host;
  host.expert_num_tokens = to_host(received_.expert_num_tokens);
  const auto* counts = host.expert_num_tokens.data<int32_t>();
  const int64_t num_local = host.expert_num_tokens.numel();
  const int64_t most = *std::max_element(counts, counts + num_local);
  const auto take = [&](const Tensor& there) {
    const Tensor here = Tensor::zeros({num_local, most, there.dim(2)}, there.dtype());
    for (int64_t l = 0; l < num_local; ++l) {
      if (counts[l] > 0) {
        copy(there[l].slice(0, counts[l]), here[l].slice(0, counts[l]), stream_);
      }
    }
    return here;
  };
  host.x = take(received_.x);
  if (received_.x_scale) {
    host.x_scale = take(received_.x_scale);
  }
  stream_.synchronize();
  return host;
}

std::vector<GpuTransfer> LowLatencyOnGpu::transfers() {
  const RowCounts counts = count_rows(problem_, all_);
  const bool is_cast = cast_ != LowLatencyCast::kNone;
  const int64_t combine_row = problem_.hidden * 2;
  const int64_t dispatch_row = is_cast ? problem_.hidden + problem_.hidden / 32 : combine_row;
  const auto& given = sum_ == LowLatencySum::kRanks ? counts.copies : counts.selections;
  const int64_t sent = dispatch_row * counts.most_sent(counts.copies, false);
  const int64_t given_back = combine_row * counts.most_received(given, false);
  const int64_t selections = counts.most_sent(counts.selections, true);

  const auto received = [this] {
    return dispatch_difference(problem_, all_, rank_, cast_, received_rows());
  };
  const auto combined = [this] {
    return low_latency_combine_difference(problem_, own(), sum_, to_host(combined_));
  };
  const auto clear = [this] { forget(); };
  const auto sent_off = [this] {
    forget();
    send();
  };
  const auto dispatched = [this] {
    forget();
    dispatch();
  };
  const auto sent_back = [this, dispatched] {
    dispatched();
    send_back();
  };
  const auto there_and_back = [this] {
    dispatch();
    combine();
    forget();
  };
  std::vector<GpuTransfer> list;
  for (const GpuLaunch launch : {GpuLaunch::kStream, GpuLaunch::kGraph}) {
    const auto add_dispatch = [&](const char* name, GpuWork work) {
      list.push_back({name, launch, std::move(work), received, sent, dispatch_row * selections});
    };
    const auto add_combine = [&](const char* name, GpuWork work) {
      list.push_back(
          {name, launch, std::move(work), combined, given_back, combine_row * selections});
    };
    if (with_dispatch_) {
      add_dispatch("dispatch", {clear, [this] { dispatch(); }, {}});
      add_dispatch("dispatch_send", {clear, [this] { send(); }, [this] { receive(); }});
      add_dispatch("dispatch_receive", {sent_off, [this] { receive(); }, {}});
    }
    if (!is_cast) {  // the combine does not depend on how rows came
      add_combine("combine", {dispatched, [this] { combine(); }, {}});
      add_combine("combine_send",
                  {dispatched, [this] { send_back(); }, [this] { receive_back(); }});
      add_combine("combine_receive", {sent_back, [this] { receive_back(); }, {}});
    }
    list.push_back({"both",
                    launch,
                    {clear, there_and_back, {}, kPairs},
                    combined,
                    sent + given_back,
                    (dispatch_row + combine_row) * selections});
  }
  return list;
}

}  // namespace

std::unique_ptr<GpuTransport> make_gpu_low_latency(const GpuRankSetup& setup) {
  return std::make_unique<LowLatencyOnGpu>(setup);
}

int64_t gpu_low_latency_bytes(const GpuProblem& problem) {
  return LowLatency::size_hint(options_of(problem), problem.routing.num_ranks,
                               problem.routing.num_experts, Device::cuda(0));
}

}  // namespace moebius::bench
