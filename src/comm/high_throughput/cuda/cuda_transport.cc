// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cuda/cuda_transport.h"

#include <algorithm>
#include <atomic>

#include "comm/device/last_work.h"
#include "comm/high_throughput/cuda/high_throughput_nodes.h"
#include "comm/high_throughput/cuda/make_transport.h"
#include "comm/routing/cuda/routing_tables.h"
#include "comm/routing/payloads.h"
#include "comm/routing/route.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/row_arrivals.h"
#include "core/cuda/runtime.h"
#include "moebius/deadline.h"

namespace moebius::comm {

const CudaHandle& own_cuda_handle(const DispatchHandle& handle) {
  const auto* own = dynamic_cast<const CudaHandle*>(&handle);
  expect(own != nullptr, "the handle does not come from a high-throughput dispatch on CUDA");
  return *own;
}

int64_t CudaHandle::most_rows() const {
  if (!counts_on_host) {
    return capacity;
  }
  int64_t most = 0;
  for (int r = 0; r < num_ranks; ++r) {
    most = std::max(most, copies_to(counts, num_ranks, r));
  }
  return most;
}

Tensor CudaHandle::source_rank() const {
  std::vector<uint32_t> sent = counts;
  if (!counts_on_host) {
    dispatched.synchronize();  // copy_now uses a stream of its own
    sent.resize(static_cast<size_t>(copies.numel()));
    cuda::copy_now(sent.data(), copies.raw(), copies.nbytes(), copies.device().index);
  }
  std::vector<int32_t> ranks;
  for (int s = 0; s < num_ranks; ++s) {
    ranks.insert(ranks.end(), static_cast<size_t>(copies_between(sent, num_ranks, s, rank)), s);
  }
  ranks.resize(static_cast<size_t>(rows), -1);
  return upload(ranks, copies.device());
}

CudaHighThroughput::CudaHighThroughput(Group& g,
                                       ExpertPlacement p,
                                       const DispatchConfig& for_dispatch,
                                       const DispatchConfig& for_combine)
    : CudaHighThroughputBase(g, std::move(p)) {
  const int num_ranks = group.size();
  // The blocks of a call wait for each other, so all of them must be resident.
  for (const DispatchConfig* config : {&for_dispatch, &for_combine}) {
    expect_sms(*config);
  }
  load_kernels();
  control_layout_.num_ranks = num_ranks;
  for (int r = 0; r < num_ranks; ++r) {
    control_layout_.max_local_experts =
        std::max(control_layout_.max_local_experts, static_cast<int>(placement.num_local(r)));
  }
  block_counts_ = Tensor::empty({cuda::num_sms(device_.index), num_ranks + placement.num_experts()},
                                DType::kI32, device_);
  bank_table_ = Tensor::zeros({kMaxBanks, num_ranks}, DType::kI64, device_);
  state_ = Tensor::zeros({static_cast<int64_t>(sizeof(CallState))}, DType::kU8, device_);
  mapped_ = cuda::MappedMemory(
      host_experts_offset() + num_local_ * static_cast<int64_t>(sizeof(uint32_t)), device_.index);
  control_ = group.make_window("high throughput control", control_layout_.bytes());
  signals_.rank = group.rank();
  signals_.num_ranks = num_ranks;
  signals_.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(group.timeout()).count());
  signals_.record = mapped_.device_as<FaultRecord>();
  for (int r = 0; r < num_ranks; ++r) {
    signals_.windows[r] = control_->peer(r);
  }
  signals_.abort_at = ControlLayout::kAbort;
  // No kernel may wait for a peer before the kernels of all ranks are loaded.
  group.barrier("high throughput on CUDA");
}

CudaHighThroughput::~CudaHighThroughput() {
  if (!last_stream_) {
    return;
  }
  if (broken_) {
    std::atomic_ref(mapped_.host_as<FaultRecord>()->stop).store(1);
  }
  await_last_work(*last_stream_);
}

void CudaHighThroughput::expect_sms(const DispatchConfig& config) const {
  expect_le(config.num_sms, cuda::num_sms(device_.index), "num_sms (SMs of the GPU)");
}

void CudaHighThroughput::expect_configs(const Configs& next) {
  expect_sms(next.dispatch);
  expect_sms(next.combine);
  settle();  // a call that is launched again must have the blocks that it was planned for
}

void CudaHighThroughput::load_kernels() {
  expect_usable(device_);
  const cuda::DeviceGuard guard(device_.index);
  // What the kernels have of static shared memory, and what the system keeps of each block.
  constexpr int64_t kReserved = 2048;
  shared_bytes_ = cuda_device_info(device_.index).shared_bytes_per_block - kReserved;
  cuda::check_cuda(load_dispatch_kernels(group.size(), shared_bytes_),
                   "loading the dispatch kernel");
  cuda::check_cuda(load_combine_kernels(group.size(), shared_bytes_),
                   "loading the combine kernels");
  load_stop_kernel(device_.index);
  load_routing_kernels(device_.index);
  cuda::load_await_ids_kernel(device_.index);
}

uint64_t CudaHighThroughput::reported_fault() const {
  return std::atomic_ref(mapped_.host_as<FaultRecord>()->fault).load();
}

void CudaHighThroughput::check() {
  auto* record = mapped_.host_as<FaultRecord>();
  const uint64_t fault = reported_fault();
  if (!broken_ && fault != 0 && unpack_fault(fault).reason == FaultReason::kStopped) {
    broken_ = told_by_hosts();
  }
  if (!broken_ && fault != 0) {
    broken_ = make_comm_error(group.rank(), fault, std::atomic_ref(record->seen).load(),
                              group.timeout().count());
  }
  if (broken_) {
    throw CommError(*broken_);
  }
  CudaHighThroughputBase::check();
}

int64_t CudaHighThroughput::bytes() const {
  int64_t total = base_bytes() + banks_.bytes() + control_->bytes() + mapped_.bytes();
  for (const Tensor& table : {bank_table_, block_counts_, state_}) {
    total += table.nbytes();
  }
  for (const auto* window : {&slots_, &flags_}) {
    total += *window == nullptr ? 0 : (*window)->bytes();
  }
  for (const std::unique_ptr<Window>& window : outgrown_) {
    total += window->bytes();
  }
  return total;
}

std::optional<CommError> CudaHighThroughput::told_by_hosts() const {
  constexpr std::chrono::milliseconds kPatience{100};  // news may be slower than NVLink
  const Deadline look = Deadline::after(kPatience);
  try {
    group.wait_until(
        "high throughput", group.rank(), [&] { return look.expired(); },
        [] { return std::string("expected news of a rank that has failed"); });
  } catch (const CommError& error) {
    return error;
  }
  return std::nullopt;
}

// A captured stream cannot wait for an event from outside of the capture, nor can others wait for
// an event of a capture.  So the stream that launches a graph decides where it comes among other
// calls.
void CudaHighThroughput::order_after_last(const Stream& stream) {
  const uint64_t capture = cuda::capture_id(stream.native_handle(), device_.index);
  const LastCall& last = capture == 0 ? last_call_ : last_recorded_;
  if (last.stream && last.stream != stream.native_handle() && last.capture == capture) {
    stream.wait(last.event);
  }
  last_stream_ = stream;
}

Event CudaHighThroughput::record(const Stream& stream) {
  const uint64_t capture = cuda::capture_id(stream.native_handle(), device_.index);
  LastCall& last = capture == 0 ? last_call_ : last_recorded_;
  last = {stream.native_handle(), stream.record(), capture};
  return last.event;
}

TransportStatistics CudaHighThroughput::statistics() const {
  if (last_stream_) {
    last_stream_->synchronize();
  }
  CallState state{};
  cuda::copy_now(&state, state_.raw(), sizeof(state), device_.index);
  return {static_cast<int64_t>(state.selections), static_cast<int64_t>(state.copies), 0};
}

std::unique_ptr<HighThroughput::State> make_cuda_high_throughput(
    Group& group,
    ExpertPlacement placement,
    const DispatchConfig& for_dispatch,
    const DispatchConfig& for_combine) {
  if (group.topology().num_nodes() > 1) {
    return std::make_unique<CudaNodesHighThroughput>(group, std::move(placement));
  }
  return std::make_unique<CudaHighThroughput>(group, std::move(placement), for_dispatch,
                                              for_combine);
}

}  // namespace moebius::comm
