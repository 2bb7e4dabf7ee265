// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/cuda/cuda_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/device/last_work.h"
#include "comm/group/shared_device.h"
#include "core/cuda/device.h"
#include "core/cuda/runtime.h"

namespace moebius {

using comm::CudaLowLatencyLayout;
using comm::FaultRecord;
using comm::LowLatencyDeviceState;

namespace {

int64_t max_local(const ExpertPlacement& placement, int num_ranks) {
  int64_t most = 0;
  for (int r = 0; r < num_ranks; ++r) {
    most = std::max(most, placement.num_local(r));
  }
  return most;
}

CudaLowLatencyLayout make_layout(const LowLatencyOptions& options,
                                 int num_ranks,
                                 int64_t num_local) {
  const auto refuse_above = [](int64_t value, int64_t limit, std::string_view what) {
    if (value > limit) {
      throw Unsupported(fmt::format("low latency on a GPU: {} is {}, at most {} is possible", what,
                                    value, limit));
    }
  };
  refuse_above(num_ranks, comm::kMaxCudaRanks, "the number of ranks");
  refuse_above(options.topk, comm::kMaxLowLatencyTopk, "topk");
  refuse_above(num_local, comm::kMaxLocalIndex, "the number of local experts");
  refuse_above(options.max_tokens * options.topk, comm::kMaxLocalIndex, "max_tokens * topk");
  return CudaLowLatencyLayout::make(options.max_tokens, options.topk, options.hidden,
                                    bits(options.in_dtype) / 8, num_ranks, num_local);
}

}  // namespace

CudaLowLatency::CudaLowLatency(Group& g,
                               ExpertPlacement p,
                               const LowLatencyOptions& o,
                               std::unique_ptr<Window> given)
    : State(g, std::move(p), o),
      device_(g.device()),
      layout_(make_layout(o, g.size(), max_local(placement, g.size()))),
      is_reserved_(given != nullptr),
      window_(is_reserved_ ? std::move(given)
                           : g.make_window("low latency window", layout_.bytes())),
      record_(sizeof(FaultRecord), device_.index),
      device_state_(Tensor::zeros({sizeof(LowLatencyDeviceState)}, DType::kU8, device_)),
      expert_rows_(Tensor::zeros({num_local()}, DType::kI64, device_)),
      given_up_(static_cast<size_t>(g.size())) {
  const Tensor words = Tensor::empty({placement.num_experts()}, DType::kI32);
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    words.data<int32_t>()[e] =
        static_cast<int32_t>(comm::make_pair(static_cast<uint32_t>(placement.rank_of(e)),
                                             static_cast<uint32_t>(placement.local_index(e))));
  }
  placement_words_ = on_device(words.shape(), DType::kI32);
  cuda::copy_now(placement_words_.raw(), words.raw(), words.nbytes(), device_.index);

  for (Place& place : places_) {
    place.row_words = on_device({2, num_local(), max_rows()}, DType::kI32);
    place.ranges = on_device({num_local(), group.size()}, DType::kI64);
    place.counts = on_device({num_local()}, DType::kI32);
    place.num_messages = Tensor::zeros({group.size()}, DType::kI32, device_);
    place.message_rows =
        on_device({options.max_tokens, group.size(), options.topk + 1}, DType::kI32);
  }
  // The blocks of all ranks on a GPU must fit on it at once, since they wait for each other.
  const int num_sms =
      cuda::num_sms(device_.index) / static_cast<int>(comm::ranks_on_this_gpu(group).size());
  num_blocks_ = std::max(1, options.num_sms > 0 ? std::min(options.num_sms, num_sms) : num_sms);
  // Sized for the rank with most experts, so that all ranks accept or refuse together.
  dispatch_shared_ =
      comm::DispatchSharedMap::make(layout_, placement.num_experts(), layout_.max_local);
  const int64_t most = cuda::device_info(device_.index).shared_bytes_per_block - 1024;
  stage_parts_ =
      comm::CombineSharedMap::max_stage_parts(layout_.element_bytes, layout_.num_parts, most);
  combine_shared_ = comm::CombineSharedMap::make(layout_.element_bytes, stage_parts_).bytes();
  if (std::max(dispatch_shared_.bytes, combine_shared_) > most) {
    throw Unsupported(fmt::format(
        "low latency on {}: {} tokens, top-{} of {} experts, {} of them local, need {} bytes of "
        "shared memory per block, at most {} are possible",
        to_string(device_), options.max_tokens, options.topk, placement.num_experts(),
        layout_.max_local, std::max(dispatch_shared_.bytes, combine_shared_), most));
  }
  comm::load_low_latency_dispatch(device_.index, options.in_dtype, g.size(),
                                  dispatch_shared_.bytes);
  if (options.in_dtype == DType::kF32) {  // rows of other types travel as elements of two bytes
    comm::load_low_latency_dispatch(device_.index, DType::kBF16, g.size(), dispatch_shared_.bytes);
  }
  comm::load_low_latency_combine(device_.index, options.in_dtype, options.sum, combine_shared_);
  comm::load_low_latency_resume(device_.index);
  // No kernel may wait for a rank that is still loading its kernels, since that may wait for the
  // device, that is for the work of this process there.  A process does not wait for the work of
  // others, and so needs no other rank where it has memory already.
  if (!is_reserved_ || group.shares_address_space()) {
    group.barrier("low latency set-up");
  }
}

CudaLowLatency::~CudaLowLatency() {
  if (last_stream_) {
    comm::await_last_work(*last_stream_);
  }
}

void CudaLowLatency::check() const {
  const auto* record = record_.host_as<volatile FaultRecord>();
  const uint64_t fault = record->fault;
  if (fault != 0) {
    throw comm::make_comm_error(group.rank(), fault, record->seen, group.timeout().count());
  }
}

void CudaLowLatency::expect_here(const Stream& stream) const {
  expect(stream.device() == device_, [&] {
    return fmt::format("the stream is of {}, the group is on {}", to_string(stream.device()),
                       to_string(device_));
  });
}

// A kernel of this rank may have excluded ranks since the last time.
void CudaLowLatency::learn_dead() {
  const auto* record = record_.host_as<volatile FaultRecord>();
  for (int r = 0; options.excludes_missing && r < group.size(); ++r) {
    if (record->excluded[r] != 0 && !is_dead(r)) {
      group.set_dead(r, true);
      dead[static_cast<size_t>(r)] = true;
    }
  }
}

void CudaLowLatency::resume(const Stream& stream) {
  learn_dead();
  if (num_given_up_ != num_given_up_agreed_) {
    if (comm::may_go_on(record_.host_as<volatile FaultRecord>()->fault, dead_mask())) {
      comm::launch_low_latency_resume(make_call(0), num_given_up_, device_.index,
                                      stream.native_handle());
      stream.synchronize();
      num_given_up_agreed_ = num_given_up_;
    }
  }
  check();
}

comm::LowLatencyCall CudaLowLatency::make_call(int place) const {
  comm::LowLatencyCall call{};
  call.layout = layout_;
  call.ranks = comm::Divisor::of(layout_.num_ranks);
  call.parts = comm::Divisor::of(layout_.num_parts);
  call.state = reinterpret_cast<LowLatencyDeviceState*>(device_state_.raw());
  call.signals.rank = group.rank();
  call.signals.num_ranks = group.size();
  call.signals.timeout_ns =
      static_cast<uint64_t>(std::chrono::nanoseconds(group.timeout()).count());
  call.signals.record = record_.device_as<FaultRecord>();
  for (int r = 0; r < group.size(); ++r) {
    call.signals.windows[r] = window_->peer(r);
  }
  call.signals.abort_at = layout_.abort_at(0);
  call.signals.exclusions = &call.state->exclusions;
  call.signals.excludes_missing = options.excludes_missing;
  call.signals.beats_at = layout_.beat_at(0);
  call.num_experts = static_cast<int>(placement.num_experts());
  call.num_local = static_cast<int>(num_local());
  call.placement = reinterpret_cast<const uint32_t*>(placement_words_.raw());
  call.place = place;
  const Place& own = places_[static_cast<size_t>(place)];
  call.num_messages = own.num_messages.data<int32_t>();
  call.message_rows = own.message_rows.data<int32_t>();
  return call;
}

// Memory of at least `bytes`.  Where `own` has fewer, results and kernels may still use it, so it
// is kept, too.
const Tensor& CudaLowLatency::at_least(Tensor& own, int64_t bytes) {
  if (!own || own.nbytes() < bytes) {
    if (own) {
      outgrown_.push_back(own);
    }
    own = on_device({bytes}, DType::kU8);
  }
  return own;
}

void CudaLowLatency::launch_kernel(const comm::LowLatencyDispatchCall& call, const Stream& stream) {
  comm::launch_low_latency_dispatch(
      call, {num_blocks_, dispatch_shared_.bytes, device_.index, stream.native_handle()});
}

void CudaLowLatency::launch_kernel(const comm::LowLatencyCombineCall& call, const Stream& stream) {
  const bool uses_stages = call.in_bulk && call.sum == LowLatencySum::kSelections &&
                           call.coding == LowLatencyCoding::kNone;
  comm::launch_low_latency_combine(call, {num_blocks_, uses_stages ? combine_shared_ : 0,
                                          device_.index, stream.native_handle()});
}

auto CudaLowLatency::to_settle(auto call) {
  call.call.phases = comm::kReceivePhase | comm::kSettlePhase;
  call.wait_us = nullptr;
  return call;
}

void CudaLowLatency::launch(auto& started, int phases, const Stream& stream) {
  started.call.call.phases = phases;
  launch_kernel(started.call, stream);
  if (options.excludes_missing && (phases & comm::kReceivePhase) != 0) {
    launch_kernel(to_settle(started.call), stream);
  }
  last_stream_ = stream;
  if (started.records_event && (phases & comm::kReceivePhase) != 0) {
    started.event = stream.record();
  }
}

auto CudaLowLatency::launch_at_once(auto started, const Stream& stream) {
  launch(started, comm::kSendPhase | comm::kReceivePhase, stream);
  return output_of(started);
}

auto CudaLowLatency::launch_in_halves(const auto& begin, const Stream& stream) {
  // Both halves share it.  It stays where it is made, since the arguments of a kernel are large.
  struct Halves {
    Halves(CudaLowLatency* of, const Stream& on, decltype(begin) make)
        : owner(of), stream(on), started(make()) {}
    CudaLowLatency* owner;
    Stream stream;
    decltype(begin()) started;
    bool is_received = false;

    void end() {
      if (!is_received) {
        owner->launch(started, comm::kReceivePhase, stream);
        is_received = true;
      }
    }
  };
  const auto halves = std::make_shared<Halves>(this, stream, begin);
  launch(halves->started, comm::kSendPhase, stream);
  using Output = decltype(output_of(halves->started));
  return Pending<Output>{[halves] { halves->end(); },
                         [halves] {
                           halves->end();
                           return halves->owner->output_of(halves->started);
                         }};
}

Pending<LowLatencyDispatchOutput> CudaLowLatency::dispatch_async(
    const LowLatencyDispatchInput& input, const Stream& stream) {
  return launch_in_halves([&] { return begin_dispatch(input, stream); }, stream);
}

LowLatencyDispatchOutput CudaLowLatency::dispatch(const LowLatencyDispatchInput& input,
                                                  const Stream& stream) {
  return launch_at_once(begin_dispatch(input, stream), stream);
}

Pending<LowLatencyCombineOutput> CudaLowLatency::combine_async(const Combine& call) {
  return launch_in_halves([&] { return begin_combine(call); }, call.stream);
}

LowLatencyCombineOutput CudaLowLatency::combine(const Combine& call) {
  return launch_at_once(begin_combine(call), call.stream);
}

comm::RankMask CudaLowLatency::dead_mask() const {
  comm::RankMask mask{};
  for (int r = 0; r < group.size(); ++r) {
    if (is_dead(r)) {
      mask.add(r);
    }
  }
  return mask;
}

void CudaLowLatency::set_dead(int rank, bool is_dead_now) {
  learn_dead();
  group.set_dead(rank, is_dead_now);
  num_given_up_ += is_dead_now && !given_up_[static_cast<size_t>(rank)] ? 1u : 0u;
  given_up_[static_cast<size_t>(rank)] = is_dead_now;
  dead[static_cast<size_t>(rank)] = is_dead_now;
  record_.host_as<volatile FaultRecord>()->excluded[rank] = 0;
  if (!is_dead_now) {  // forget the fault that it may have told while it was excluded
    cuda::fill_zero_now(window_->local() + layout_.abort_at(rank), sizeof(uint64_t), device_.index);
  }
  const comm::RankMask mask = dead_mask();
  constexpr size_t kMask =
      offsetof(LowLatencyDeviceState, exclusions) + offsetof(comm::Exclusions, dead);
  cuda::copy_now(device_state_.bytes() + kMask, &mask, sizeof(mask), device_.index);
}

TransportStatistics CudaLowLatency::statistics() const {
  LowLatencyDeviceState state{};
  cuda::copy_now(&state, device_state_.raw(), sizeof(state), device_.index);
  return {static_cast<int64_t>(state.selections), static_cast<int64_t>(state.copies), 0};
}

Tensor CudaLowLatency::expert_statistics() const {
  const Tensor result = Tensor::empty(expert_rows_.shape(), DType::kI64);
  cuda::copy_now(result.raw(), expert_rows_.raw(), expert_rows_.nbytes(), device_.index);
  return result;
}

int64_t CudaLowLatency::bytes() const {
  int64_t total = window_->bytes() + record_.bytes();
  for (const Tensor& tensor : {device_state_, placement_words_, expert_rows_}) {
    total += tensor.nbytes();
  }
  for (const Place& place : places_) {
    for (const Tensor* tensor :
         {&place.rows, &place.cast_rows, &place.cast_scales, &place.given_scales, &place.row_words,
          &place.counts, &place.ranges, &place.expert_output, &place.num_messages,
          &place.message_rows}) {
      total += *tensor ? tensor->nbytes() : 0;
    }
  }
  for (const Tensor& tensor : outgrown_) {
    total += tensor.nbytes();
  }
  return total;
}

void CudaLowLatency::reset_statistics() {
  cuda::fill_zero_now(expert_rows_.raw(), expert_rows_.nbytes(), device_.index);
  constexpr size_t kFirst = offsetof(LowLatencyDeviceState, selections);
  cuda::fill_zero_now(device_state_.bytes() + kFirst, sizeof(LowLatencyDeviceState) - kFirst,
                      device_.index);
}

int64_t cuda_low_latency_bytes(const LowLatencyOptions& options, int num_ranks, int64_t num_local) {
  return make_layout(options, num_ranks, num_local).bytes();
}

std::unique_ptr<LowLatency::State> make_cuda_low_latency(Group& group,
                                                         ExpertPlacement placement,
                                                         const LowLatencyOptions& options,
                                                         std::unique_ptr<Window> window) {
  if (group.topology().num_nodes() > 1) {
    return make_cuda_nodes_low_latency(group, std::move(placement), options);
  }
  return std::make_unique<CudaLowLatency>(group, std::move(placement), options, std::move(window));
}

}  // namespace moebius
