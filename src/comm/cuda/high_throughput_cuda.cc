// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/high_throughput_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "comm/cuda/high_throughput.h"
#include "comm/cuda/routing_tables.h"
#include "comm/payloads.h"
#include "comm/route.h"
#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "moebius/log.h"

namespace moebius::comm {

namespace {

// Mapped memory is used again rather than given back, which would wait for the device, where
// kernels of other ranks may be waiting for this one.
std::shared_ptr<cuda::MappedMemory> lend_mapped(int index) {
  struct Free {
    int index;
    cuda::MappedMemory memory;
  };
  static std::mutex mutex;
  static auto& free = *new std::vector<Free>;  // leaked: objects of static life may come back late
  cuda::MappedMemory memory;
  {
    const std::lock_guard lock(mutex);
    const auto found =
        std::find_if(free.begin(), free.end(), [&](const Free& f) { return f.index == index; });
    if (found != free.end()) {
      memory = found->memory;
      free.erase(found);
    }
  }
  if (memory.bytes() == 0) {
    memory =
        cuda::MappedMemory(kHostCountsOffset + static_cast<int64_t>(sizeof(HostCounts)), index);
  }
  std::fill_n(memory.host(), memory.bytes(), std::byte{0});
  return {new cuda::MappedMemory(memory), [index](cuda::MappedMemory* m) {
            const std::lock_guard lock(mutex);
            free.push_back({index, *m});
            delete m;
          }};
}

Tensor upload(const std::vector<int32_t>& values, Device device) {
  const Tensor t = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32, device);
  cuda::copy_now(t.raw(), values.data(), t.nbytes(), device.index);
  return t;
}

// Waits for the stream.
template <typename T>
T read_now(const T* on_device, const Stream& stream) {
  T value{};
  cuda::copy(&value, on_device, sizeof(T), stream.native_handle(), stream.device().index);
  stream.synchronize();
  return value;
}

}  // namespace

const CudaHandle& own_cuda_handle(const DispatchHandle& handle) {
  const auto* own = dynamic_cast<const CudaHandle*>(&handle);
  expect(own != nullptr, "the handle does not come from a high-throughput dispatch on CUDA");
  return *own;
}

Tensor CudaHandle::source_rank() const {
  std::vector<int32_t> sent(static_cast<size_t>(copies.numel()));
  cuda::copy_now(sent.data(), copies.raw(), copies.nbytes(), copies.device().index);
  std::vector<int32_t> ranks;
  for (int s = 0; s < num_ranks; ++s) {
    ranks.insert(ranks.end(), static_cast<size_t>(sent[static_cast<size_t>(s * num_ranks + rank)]),
                 s);
  }
  ranks.resize(static_cast<size_t>(rows), -1);
  return upload(ranks, copies.device());
}

CudaHighThroughput::CudaHighThroughput(Group& g,
                                       ExpertPlacement p,
                                       const DispatchConfig& dispatch_config,
                                       const DispatchConfig& combine_config)
    : State(g, std::move(p)),
      device_(g.device()),
      num_experts_(static_cast<int>(placement.num_experts())),
      num_local_(static_cast<int>(placement.num_local(group.rank()))),
      dispatch_config_(dispatch_config),
      combine_config_(combine_config),
      arena_(device_) {
  const int num_ranks = group.size();
  expect_le(num_ranks, kMaxCudaRanks, "ranks of a high-throughput dispatch on CUDA");
  if (group.topology().num_nodes() != 1) {
    throw Unsupported("high-throughput dispatch on CUDA: ranks are on several nodes");
  }
  load_kernels();
  control_layout_.num_ranks = num_ranks;
  for (int r = 0; r < num_ranks; ++r) {
    control_layout_.max_local_experts =
        std::max(control_layout_.max_local_experts, static_cast<int>(placement.num_local(r)));
  }
  std::vector<int32_t> rank_of;
  std::vector<int32_t> local_of;
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    rank_of.push_back(placement.rank_of(e));
    local_of.push_back(static_cast<int32_t>(placement.local_index(e)));
  }
  rank_of_ = upload(rank_of, device_);
  local_of_ = upload(local_of, device_);
  block_counts_ = Tensor::empty({dispatch_config.num_sms, num_ranks + placement.num_experts()},
                                DType::kI32, device_);
  bank_table_ = Tensor::zeros({kMaxBanks, num_ranks}, DType::kI64, device_);
  state_ = Tensor::zeros({static_cast<int64_t>(sizeof(CallState))}, DType::kU8, device_);
  mapped_ = lend_mapped(device_.index);
  control_ = group.make_window("high throughput control", control_layout_.bytes());
  signals_.rank = group.rank();
  signals_.num_ranks = num_ranks;
  signals_.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(group.timeout()).count());
  signals_.record = mapped_->device_as<FaultRecord>();
  for (int r = 0; r < num_ranks; ++r) {
    signals_.abort[r] = reinterpret_cast<uint64_t*>(control_->peer(r) + ControlLayout::kAbort);
  }
  // Nobody's kernel waits before everybody's are loaded.
  group.barrier("high throughput on CUDA");
}

CudaHighThroughput::~CudaHighThroughput() {
  if (!last_stream_) {
    return;
  }
  try {
    if (broken_) {
      std::atomic_ref(mapped_->host_as<FaultRecord>()->stop).store(1);
    }
    last_stream_->synchronize();  // kernels may still use what goes now; their waits are bounded
  } catch (const Error& error) {
    log(LogLevel::kError, error.what());
  }
}

void CudaHighThroughput::load_kernels() {
  expect_usable(device_);
  const cuda::DeviceGuard guard(device_.index);
  // Static shared memory of the kernels, and what the system keeps of each block.
  constexpr int64_t kReserved = 2048;
  shared_bytes_ = cuda_device_info(device_.index).shared_bytes_per_block - kReserved;
  cuda::check_cuda(load_dispatch_kernels(shared_bytes_), "loading the dispatch kernel");
  cuda::check_cuda(load_combine_kernels(shared_bytes_), "loading the combine kernels");
  load_routing_kernels(device_.index);
}

void CudaHighThroughput::check() {
  auto* record = mapped_->host_as<FaultRecord>();
  const uint64_t fault = std::atomic_ref(record->fault).load();
  if (!broken_ && fault != 0) {
    broken_ = make_comm_error(group.rank(), fault, std::atomic_ref(record->seen).load(),
                              group.timeout().count());
  }
  if (broken_) {
    throw CommError(*broken_);
  }
}

void CudaHighThroughput::order_after_last(const Stream& stream) {
  if (last_stream_ && last_stream_->native_handle() != stream.native_handle()) {
    stream.wait(last_event_);
  }
  last_stream_ = stream;
}

void CudaHighThroughput::expect_here(const Tensor& t, const char* what) const {
  expect_eq(to_string(t.device()), to_string(device_), fmt::format("device of {}", what));
}

void CudaHighThroughput::expect_here(const Stream& stream) const {
  expect_eq(to_string(stream.device()), to_string(device_), "device of the stream");
}

void CudaHighThroughput::expect_ids_tensor(const Tensor& topk_ids) const {
  expect_dtype(topk_ids, DType::kI32, "topk_ids");
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_here(topk_ids, "topk_ids");
}

DispatchLayout CudaHighThroughput::layout(const Tensor& topk_ids, const Stream& stream) const {
  expect_ids_tensor(topk_ids);
  expect_here(stream);
  const int64_t num_tokens = topk_ids.dim(0);
  const int64_t topk = topk_ids.dim(1);
  DispatchLayout result;
  result.tokens_per_rank = Tensor::empty({group.size()}, DType::kI32, device_);
  result.tokens_per_node = Tensor::empty({1}, DType::kI32, device_);
  result.tokens_per_expert = Tensor::empty({num_experts_}, DType::kI32, device_);
  result.is_token_in_rank = Tensor::empty({num_tokens, group.size()}, DType::kBool, device_);
  const Tensor bad_id = Tensor::empty({1}, DType::kI64, device_);
  LayoutArgs args{};
  args.ids = topk_ids.data<int32_t>();
  args.num_tokens = num_tokens;
  args.topk = static_cast<int>(topk);
  args.num_experts = num_experts_;
  args.num_ranks = group.size();
  args.rank_of = rank_of_.data<int32_t>();
  args.tokens_per_rank = result.tokens_per_rank.data<int32_t>();
  args.tokens_per_node = result.tokens_per_node.data<int32_t>();
  args.tokens_per_expert = result.tokens_per_expert.data<int32_t>();
  args.is_token_in_rank = result.is_token_in_rank.data<bool>();
  args.bad_id = reinterpret_cast<unsigned long long*>(bad_id.raw());
  launch_layout(args, stream);
  const unsigned long long bad = read_now(args.bad_id, stream);
  if (bad != kNoBadId) {
    throw_bad_id(static_cast<int64_t>(bad >> 32), topk, static_cast<int32_t>(bad), num_experts_);
  }
  return result;
}

ExpertOrder CudaHighThroughput::expert_order(const DispatchOutput& output,
                                             int64_t expert_alignment,
                                             const Stream& stream) const {
  expect_ids_tensor(output.topk_ids);
  expect_here(stream);
  stream.wait(output.event);
  const int64_t num_ids = output.topk_ids.numel();
  const std::shared_ptr<void> starts = cuda::allocate_on(expert_starts_bytes(num_ids, num_local_),
                                                         stream.native_handle(), device_.index);
  ExpertOrder order;
  order.expert_offsets = Tensor::empty({num_local_ + 1}, DType::kI32, device_);
  ExpertOrderArgs args{};
  args.ids = output.topk_ids.data<int32_t>();
  args.num_ids = num_ids;
  args.topk = static_cast<int>(output.topk_ids.dim(1));
  args.num_local = num_local_;
  args.alignment = static_cast<int>(expert_alignment);
  args.starts = static_cast<int32_t*>(starts.get());
  args.expert_offsets = order.expert_offsets.data<int32_t>();
  launch_expert_offsets(args, stream);
  const int64_t rows = read_now(args.expert_offsets + num_local_, stream);

  order.copy_row = Tensor::empty({rows}, DType::kI32, device_);
  order.slot = Tensor::empty({rows}, DType::kI32, device_);
  args.copy_row = order.copy_row.data<int32_t>();
  args.slot = order.slot.data<int32_t>();
  launch_expert_rows(args, stream);
  for (const Tensor& payload : output.payloads) {
    const Tensor sorted = Tensor::empty(with_rows(payload, rows), payload.dtype(), device_);
    launch_gather_rows(payload, order.copy_row, sorted, stream);
    order.payloads.push_back(sorted);
  }
  return order;
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
    const DispatchConfig& dispatch_config,
    const DispatchConfig& combine_config) {
  return std::make_unique<CudaHighThroughput>(group, std::move(placement), dispatch_config,
                                              combine_config);
}

}  // namespace moebius::comm
