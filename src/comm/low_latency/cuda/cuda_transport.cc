// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The host's side of LowLatency on the GPUs of one node: it gives out places, launches kernels, and
// looks for faults.  It waits for the GPU only in the first dispatch after ranks were excluded.
#include "comm/low_latency/cuda/cuda_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "comm/device/last_work.h"
#include "comm/group/shared_device.h"
#include "comm/low_latency/cuda/kernels.h"
#include "core/cuda/device.h"
#include "core/cuda/host_memory.h"
#include "core/cuda/runtime.h"
#include "core/deferred_release.h"

namespace moebius {

namespace {

using comm::CudaLowLatencyLayout;
using comm::FaultRecord;
using comm::LowLatencyDeviceState;

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

class CudaLowLatency;

struct CudaHandle final : LowLatencyHandle, std::enable_shared_from_this<CudaHandle> {
  const CudaLowLatency* owner = nullptr;
  int place = 0;
  int64_t num_tokens = 0;
  int64_t num_rows = 0;  // of an expert in the outputs
  mutable bool is_combined = false;
  std::array<Tensor, 7> memory;  // the memory of the result, which may outlive the owner
};

// The device tensors of one of the two results that may be alive.
struct Place {
  // Memory for the largest calls; what a call does not need is not made.
  Tensor rows;           // of rows that are not cast
  Tensor cast_rows;      // of rows in f8e4m3
  Tensor cast_scales;    // of their scales
  Tensor given_scales;   // of scales that came with the rows
  Tensor row_words;      // i32 [2, L, max_tokens * R]: tags, then tokens
  Tensor counts;         // i32 [L], handed to the caller
  Tensor ranges;         // i64 [L, R], likewise
  Tensor expert_output;  // see combine_buffer()
  Tensor num_messages;   // i32 [R]
  Tensor message_rows;   // i32 [max_tokens, R, K + 1]
  std::weak_ptr<CudaHandle> result;
};

class CudaLowLatency final : public LowLatency::State {
 public:
  CudaLowLatency(Group& g,
                 ExpertPlacement p,
                 const LowLatencyOptions& o,
                 std::unique_ptr<Window> given);
  ~CudaLowLatency() override;

  Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                   const Stream& stream) override;
  LowLatencyDispatchOutput dispatch(const LowLatencyDispatchInput& input,
                                    const Stream& stream) override;
  Pending<LowLatencyCombineOutput> combine_async(const Combine& call) override;
  LowLatencyCombineOutput combine(const Combine& call) override;
  Tensor combine_buffer(const LowLatencyHandle& handle) override;
  void check() const override;
  void set_dead(int rank, bool is_dead_now) override;
  TransportStatistics statistics() const override;
  Tensor expert_statistics() const override;
  void reset_statistics() override;
  int64_t bytes() const override;
  void learn_dead() override;

 private:
  struct Dispatch {
    comm::LowLatencyDispatchCall call;
    std::shared_ptr<CudaHandle> handle;
    bool records_event = false;
    Event event;                            // after the receive half
    LowLatencyDispatchInput operands = {};  // kept until the last launch
  };
  struct Return {
    comm::LowLatencyCombineCall call;
    std::shared_ptr<const CudaHandle> handle;
    LowLatencyCombineInput operands;  // kept until the last launch
    Tensor out;
    bool records_event = false;
    Event event;  // after the receive half
  };

  comm::LowLatencyCall make_call(int place) const;
  comm::RankMask dead_mask() const;
  Dispatch begin_dispatch(const LowLatencyDispatchInput& input, const Stream& stream);
  LowLatencyDispatchOutput output_of(const Dispatch& dispatch);
  LowLatencyCombineOutput output_of(const Return& rows) { return {rows.out, rows.event}; }
  Return begin_combine(const Combine& call);
  // The call as the launch that settles it needs it: what is noted once is left out.
  static auto to_settle(auto call);
  void launch_kernel(const comm::LowLatencyDispatchCall& call, const Stream& stream);
  void launch_kernel(const comm::LowLatencyCombineCall& call, const Stream& stream);
  // `started` is a Dispatch or a Return.
  void launch(auto& started, int phases, const Stream& stream);
  auto launch_at_once(auto started, const Stream& stream);
  auto launch_in_halves(auto started, const Stream& stream);
  void expect_here(const Stream& stream) const;
  // Call it before a dispatch: after ranks were excluded, the others meet and go on.
  void resume(const Stream& stream);
  const Tensor& at_least(Tensor& own, int64_t bytes);
  const CudaHandle& own_handle(const LowLatencyHandle& handle) const;
  Tensor on_device(Shape shape, DType dtype) const { return Tensor::empty(shape, dtype, device_); }

  Device device_;
  CudaLowLatencyLayout layout_;
  bool is_reserved_ = false;  // the window was made before
  std::unique_ptr<Window> window_;
  cuda::MappedMemory record_;
  Tensor device_state_;
  Tensor placement_words_;
  Tensor expert_rows_;  // i64 [L]
  std::array<Place, 2> places_;
  std::vector<Tensor> outgrown_;
  int64_t calls_ = 0;
  std::vector<bool> given_up_;        // the ranks that were excluded by set_dead
  uint32_t num_given_up_ = 0;         // how often a rank was
  uint32_t num_given_up_agreed_ = 0;  // the same number when ranks last met
  int num_blocks_ = 0;
  comm::DispatchSharedMap dispatch_shared_{};
  int64_t combine_shared_ = 0;
  int max_unit_parts_ = 1;
  CombineTuning tuning_ = combine_tuning;
  std::optional<Stream> last_stream_;  // the stream of the latest kernel
};

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
  max_unit_parts_ =
      comm::CombineSharedMap::max_unit_parts(layout_.element_bytes, layout_.num_parts, most);
  combine_shared_ = comm::CombineSharedMap::make(layout_.element_bytes, max_unit_parts_).bytes();
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

CudaLowLatency::Dispatch CudaLowLatency::begin_dispatch(const LowLatencyDispatchInput& input,
                                                        const Stream& stream) {
  expect_dispatch(input);
  expect_here(stream);
  resume(stream);
  const int64_t number = calls_ + 1;
  const int place_index = static_cast<int>(number % 2);
  Place& place = places_[static_cast<size_t>(place_index)];
  if (!place.result.expired()) {
    // Nobody may have it any more but a stream, which this call then follows.
    release_in_order(place.result, stream);
    if (!place.result.expired()) {
      throw_third_result(number);
    }
  }
  const bool is_cast = input.cast != LowLatencyCast::kNone;
  const LowLatencyRow row = row_of(input);
  const LowLatencyInto& into = input.into;
  const int64_t most = num_local() * max_rows();
  Tensor& rows = is_cast ? place.cast_rows : place.rows;
  if (!into.x) {
    at_least(rows, most * row.value_bytes);
  }
  Tensor& scales = is_cast ? place.cast_scales : place.given_scales;
  if (!into.x_scale && row.scale_bytes > 0) {
    const TensorKind spec = scale_spec(input, max_rows());
    at_least(scales, row_bytes(spec.dtype, spec.shape.numel()));
  }
  calls_ = number;
  stream.wait(input.previous);

  Dispatch dispatch;
  dispatch.handle = std::make_shared<CudaHandle>();
  dispatch.handle->owner = this;
  dispatch.records_event = input.records_event;
  dispatch.operands = input;
  dispatch.handle->place = place_index;
  dispatch.handle->num_tokens = input.topk_ids.dim(0);
  dispatch.handle->num_rows = room_of(input) * group.size();
  place.result = dispatch.handle;
  comm::LowLatencyDispatchCall& call = dispatch.call;
  call = {};
  call.call = make_call(place_index);
  call.dtype = options.in_dtype;
  if (!is_cast && (input.x.dtype() != options.in_dtype)) {
    // Rows of other types travel as elements of two bytes; a message has the same place.
    call.dtype = DType::kBF16;
    call.call.layout = layout_.with_rows(row.value_bytes / 2, 2);
    call.call.parts = comm::Divisor::of(call.call.layout.num_parts);
  }
  call.cast = input.cast;
  call.shared = dispatch_shared_;
  call.max_tokens = static_cast<int>(room_of(input));
  call.kind = {static_cast<uint32_t>(row.value_bytes),
               static_cast<uint32_t>(std::min<int64_t>(row.scale_bytes, 0xffff)),
               static_cast<uint32_t>(room_of(input))};
  call.kind_tag = comm::kind_tag(call.kind);
  call.scale_at = row.scale_offset();
  call.scale_bytes = is_cast ? 0 : static_cast<int>(row.scale_bytes);
  call.x = input.x.bytes();
  call.x_scale = input.x_scale ? input.x_scale.bytes() : nullptr;
  call.ids = Ids::of(input.topk_ids);
  call.tags = input.row_tags ? input.row_tags.data<int32_t>() : nullptr;
  call.num_tokens = static_cast<int>(input.topk_ids.dim(0));
  call.scales = input.scales;
  const auto choose = [](const Tensor& given, const Tensor& own) -> const Tensor& {
    return given ? given : own;
  };
  call.out = choose(into.x, rows).bytes();
  call.out_scale = row.scale_bytes > 0 ? choose(into.x_scale, scales).bytes() : nullptr;
  auto* words = place.row_words.data<int32_t>();
  call.out_tags = into.row_tags ? into.row_tags.data<int32_t>() : words;
  call.out_tokens = into.source_token ? into.source_token.data<int32_t>() : words + most;
  call.out_count = choose(into.expert_num_tokens, place.counts).data<int32_t>();
  call.out_ranges = choose(into.source_ranges, place.ranges).data<int64_t>();
  call.received = input.received ? input.received.data<int32_t>() : nullptr;
  call.wait_us = input.wait_us ? input.wait_us.data<int64_t>() : nullptr;
  call.expert_rows = expert_rows_.data<int64_t>();
  return dispatch;
}

LowLatencyDispatchOutput CudaLowLatency::output_of(const Dispatch& dispatch) {
  const Place& place = places_[static_cast<size_t>(dispatch.handle->place)];
  const std::shared_ptr<CudaHandle> keep = dispatch.handle;
  keep->memory = {place.rows,      place.cast_rows, place.cast_scales, place.given_scales,
                  place.row_words, place.counts,    place.ranges};
  // The tensors of a result keep the handle alive, and so its place and its memory.
  const auto share = [&](const Tensor& given, const Tensor& own, const TensorKind& spec,
                         int64_t offset = 0) {
    if (given) {
      return given;
    }
    return Tensor::share(keep, own.bytes() + offset, spec.shape, spec.dtype, device_);
  };
  const LowLatencyDispatchInput& input = dispatch.operands;
  const LowLatencyInto& into = input.into;
  LowLatencyDispatchOutput output;
  const bool is_cast = input.cast != LowLatencyCast::kNone;
  const int64_t rows = keep->num_rows;
  const TensorKind words{{num_local(), rows}, DType::kI32};
  output.x = share(into.x, is_cast ? place.cast_rows : place.rows, rows_spec(input, rows));
  if (row_of(input).scale_bytes > 0) {
    output.x_scale = share(into.x_scale, is_cast ? place.cast_scales : place.given_scales,
                           scale_spec(input, rows));
  }
  output.expert_num_tokens =
      share(into.expert_num_tokens, place.counts, {place.counts.shape(), DType::kI32});
  output.row_tags = share(into.row_tags, place.row_words, words);
  output.source_token =
      share(into.source_token, place.row_words, words, place.row_words.nbytes() / 2);
  output.source_ranges =
      share(into.source_ranges, place.ranges, {place.ranges.shape(), DType::kI64});
  output.handle = dispatch.handle;
  output.event = dispatch.event;
  return output;
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

Tensor CudaLowLatency::combine_buffer(const LowLatencyHandle& handle) {
  const CudaHandle& own = own_handle(handle);
  const Tensor& memory =
      at_least(places_[static_cast<size_t>(own.place)].expert_output,
               num_local() * max_rows() * row_bytes(options.in_dtype, options.hidden));
  return Tensor::share(std::make_shared<Tensor>(memory), memory.raw(),
                       {num_local(), own.num_rows, options.hidden}, options.in_dtype, device_);
}

const CudaHandle& CudaLowLatency::own_handle(const LowLatencyHandle& handle) const {
  const auto* own = dynamic_cast<const CudaHandle*>(&handle);
  expect(own != nullptr && own->owner == this,
         "the handle does not come from a dispatch of this object");
  return *own;
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

auto CudaLowLatency::launch_in_halves(auto started, const Stream& stream) {
  const auto kept = std::make_shared<decltype(started)>(std::move(started));
  launch(*kept, comm::kSendPhase, stream);
  return in_halves([this, kept, stream] { launch(*kept, comm::kReceivePhase, stream); },
                   [this, kept] { return output_of(*kept); });
}

Pending<LowLatencyDispatchOutput> CudaLowLatency::dispatch_async(
    const LowLatencyDispatchInput& input, const Stream& stream) {
  return launch_in_halves(begin_dispatch(input, stream), stream);
}

LowLatencyDispatchOutput CudaLowLatency::dispatch(const LowLatencyDispatchInput& input,
                                                  const Stream& stream) {
  return launch_at_once(begin_dispatch(input, stream), stream);
}

Pending<LowLatencyCombineOutput> CudaLowLatency::combine_async(const Combine& call) {
  return launch_in_halves(begin_combine(call), call.stream);
}

LowLatencyCombineOutput CudaLowLatency::combine(const Combine& call) {
  return launch_at_once(begin_combine(call), call.stream);
}

CudaLowLatency::Return CudaLowLatency::begin_combine(const Combine& given) {
  const auto& [input, handle, stream, out] = given;
  const CudaHandle* own = &own_handle(handle);
  expect_combine(input, own->num_tokens, own->num_rows, out);
  expect_here(stream);
  learn_dead();
  check();
  expect_combined_once(own->is_combined);
  stream.wait(input.previous);
  Return rows{{}, own->shared_from_this(), input, out, input.records_event, {}};
  comm::LowLatencyCombineCall& call = rows.call;
  call.call = make_call(own->place);
  call.dtype = options.in_dtype;
  call.x = input.x.bytes();
  call.ids = Ids::of(input.topk_ids);
  call.weights = input.topk_weights.data<float>();
  call.out = out.bytes();
  call.wait_us = input.wait_us ? input.wait_us.data<int64_t>() : nullptr;
  call.num_tokens = static_cast<int>(own->num_tokens);
  call.sum = options.sum;
  call.coding = input.coding;
  call.in_bulk = tuning_.in_bulk;
  call.unit_parts = std::min(tuning_.unit_parts, max_unit_parts_);
  call.max_unit_parts = max_unit_parts_;
  return rows;
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

}  // namespace

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
