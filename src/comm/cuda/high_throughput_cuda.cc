// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/high_throughput_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "comm/payloads.h"
#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "moebius/deadline.h"
#include "moebius/log.h"

namespace moebius::comm {

namespace {

constexpr int64_t kCountsOffset = 256;  // of HostCounts, after the FaultRecord

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
    memory = cuda::MappedMemory(kCountsOffset + static_cast<int64_t>(sizeof(HostCounts)), index);
  }
  std::fill_n(memory.host(), memory.bytes(), std::byte{0});
  return {new cuda::MappedMemory(memory), [index](cuda::MappedMemory* m) {
            const std::lock_guard lock(mutex);
            free.push_back({index, *m});
            delete m;
          }};
}

uint64_t load_acquire(const uint64_t* word) {
  return std::atomic_ref<const uint64_t>(*word).load(std::memory_order_acquire);
}

int64_t block_bytes(std::span<const uint32_t> counts,
                    int num_ranks,
                    int rank,
                    const RowLayout& layout) {
  int64_t rows = 0;
  for (int s = 0; s < num_ranks; ++s) {
    rows += counts[static_cast<size_t>(s * num_ranks + rank)];
  }
  return layout.block_bytes(rows);
}

const CudaHandle& own_handle(const DispatchHandle& handle) {
  const auto* own = dynamic_cast<const CudaHandle*>(&handle);
  expect(own != nullptr, "the handle does not come from a high-throughput dispatch on CUDA");
  return *own;
}

Tensor upload(const std::vector<int32_t>& values, Device device) {
  const Tensor t = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32, device);
  cuda::copy_now(t.raw(), values.data(), t.nbytes(), device.index);
  return t;
}

}  // namespace

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

CudaHighThroughput::CudaHighThroughput(Group& group,
                                       const ExpertPlacement& placement,
                                       const DispatchConfig& dispatch_config,
                                       const DispatchConfig& combine_config,
                                       Device device)
    : group_(group),
      device_(device),
      num_experts_(static_cast<int>(placement.num_experts())),
      num_local_(static_cast<int>(placement.num_local(group.rank()))),
      dispatch_config_(dispatch_config),
      combine_config_(combine_config),
      arena_(device) {
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
  rank_of_ = upload(rank_of, device);
  local_of_ = upload(local_of, device);
  block_counts_ = Tensor::empty({dispatch_config.num_sms, num_ranks + placement.num_experts()},
                                DType::kI32, device);
  bank_table_ = Tensor::zeros({kMaxBanks, num_ranks}, DType::kI64, device);
  state_ = Tensor::zeros({static_cast<int64_t>(sizeof(CallState))}, DType::kU8, device);
  mapped_ = lend_mapped(device.index);
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
}

void CudaHighThroughput::check() {
  const auto* record = mapped_->host_as<FaultRecord>();
  const uint64_t fault = load_acquire(&record->fault);
  if (!broken_ && fault != 0) {
    broken_ = make_comm_error(group_.rank(), fault, load_acquire(&record->seen),
                              group_.timeout().count());
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

void CudaHighThroughput::set_payloads(Transfer& transfer, int64_t num_tokens) const {
  DispatchArgs& args = transfer.args;
  const RowLayout& layout = transfer.layout;
  args.signals = signals_;
  args.control_layout = control_layout_;
  for (int r = 0; r < group_.size(); ++r) {
    args.control[r] = control_->peer(r);
  }
  args.banks = reinterpret_cast<std::byte* const*>(bank_table_.raw());
  args.state = static_cast<CallState*>(state_.raw());
  args.num_tokens = num_tokens;
  args.num_experts = num_experts_;
  args.rank_of = rank_of_.data<int32_t>();
  args.local_of = local_of_.data<int32_t>();
  args.num_local = num_local_;
  args.block_counts = reinterpret_cast<uint32_t*>(block_counts_.raw());

  expect_le(layout.num_fields(), kMaxFields, "payloads of a dispatch on CUDA, and 3");
  std::vector<PayloadShape> shapes;
  for (int f = 0; f < layout.num_payloads(); ++f) {
    const Tensor& payload = transfer.payloads[static_cast<size_t>(f)];
    args.source[f] = payload.bytes();
    shapes.push_back({layout.field_bytes(f), reinterpret_cast<uintptr_t>(payload.raw()) % 16 == 0});
  }
  args.num_payloads = layout.num_payloads();
  args.num_fields = layout.num_fields();
  for (int f = 0; f < layout.num_fields(); ++f) {
    args.field_bytes[f] = static_cast<uint32_t>(layout.field_bytes(f));
  }
  args.row_bytes = static_cast<uint32_t>(layout.row_bytes());

  args.shared.num_ranks = group_.size();
  args.shared.num_experts = num_experts_;
  args.shared.num_fields = layout.num_fields();
  args.shared.warps = kMaxWarps;
  args.shared.stages = kMaxStages;
  const StagePlan plan = make_stage_plan(shapes, shared_bytes_ - args.shared.bytes(),
                                         dispatch_config_.num_warps, dispatch_config_.num_stages);
  args.shared.warps = plan.warps;
  args.shared.stages = plan.stages;
  args.shared.stage_bytes = plan.stage_bytes;
  for (size_t f = 0; f < plan.in_bulk.size(); ++f) {
    args.in_bulk |= static_cast<uint32_t>(plan.in_bulk[f]) << f;
  }
  args.num_items = static_cast<int>(plan.items.size());
  std::copy(plan.items.begin(), plan.items.end(), args.items);
  std::copy(plan.segments.begin(), plan.segments.end(), args.segments);
}

void CudaHighThroughput::pick_bank(Transfer& transfer) {
  transfer.bank = banks_.pick();
  const int64_t bytes = banks_.bytes(transfer.bank);
  if (transfer.bank != BankPool::kNone) {
    transfer.lease = banks_.lease(transfer.bank);
  }
  transfer.args.bank = static_cast<uint32_t>(std::max<int64_t>(transfer.bank, 0));
  transfer.args.bank_units = static_cast<uint32_t>(bytes / kFieldAlignment);
}

void CudaHighThroughput::add_bank(int64_t bytes) {
  expect_le(num_banks_ + 1, kMaxBanks, "receive banks of one object");
  const int64_t bank = banks_.add(group_, bytes);
  ++num_banks_;
  std::vector<std::byte*> peers;
  for (int r = 0; r < group_.size(); ++r) {
    peers.push_back(banks_.window(bank).peer(r));
  }
  const int64_t row = bank_table_.nbytes() / kMaxBanks;
  cuda::copy_now(bank_table_.bytes() + bank * row, peers.data(), row, device_.index);
}

void CudaHighThroughput::launch(Transfer& transfer, const Stream& stream) {
  const cuda::DeviceGuard guard(device_.index);
  cuda::check_cuda(launch_dispatch(transfer.args, dispatch_config_.num_sms,
                                   cuda::as_stream(stream.native_handle())),
                   "dispatch kernel");
}

HostCounts::Status CudaHighThroughput::await_counts(uint32_t tag) {
  auto* record = mapped_->host_as<FaultRecord>();
  const auto* counts = reinterpret_cast<const HostCounts*>(mapped_->host() + kCountsOffset);
  // The kernel has the deadline; the host's is for a device that does not answer at all, and
  // looks for failures of other hosts meanwhile.
  const Deadline deadline = Deadline::after(2 * group_.timeout() + std::chrono::seconds(5));
  const auto slice =
      std::max<std::chrono::milliseconds>(group_.timeout() / 4, std::chrono::milliseconds(1));
  const auto is_here = [&] {
    return signal_epoch(load_acquire(&counts->word)) == tag || load_acquire(&record->fault) != 0;
  };
  try {
    while (!is_here()) {
      const Deadline look = Deadline::after(slice);
      group_.wait_until(
          "dispatch counts", group_.rank(), [&] { return is_here() || look.expired(); },
          [] { return std::string("expected counts of the own GPU"); });
      if (deadline.expired() && !is_here()) {
        throw CommError(fmt::format("rank {}: dispatch counts: {} does not answer", group_.rank(),
                                    to_string(device_)),
                        group_.rank(), group_.rank());
      }
    }
  } catch (const CommError& error) {
    broken_ = error;
    std::atomic_ref(record->stop).store(1);
    throw;
  }
  if (signal_epoch(load_acquire(&counts->word)) != tag) {
    check();
  }
  return static_cast<HostCounts::Status>(signal_value(load_acquire(&counts->word)));
}

void CudaHighThroughput::launch_until_moved(Transfer& transfer,
                                            CudaHandle& handle,
                                            bool is_cached,
                                            const Stream& stream) {
  DispatchArgs& args = transfer.args;
  args.host = reinterpret_cast<HostCounts*>(mapped_->device() + kCountsOffset);
  for (;;) {
    pick_bank(transfer);
    args.host_tag = ++tag_;
    launch(transfer, stream);
    const HostCounts::Status status = await_counts(args.host_tag);
    const auto* counts = reinterpret_cast<const HostCounts*>(mapped_->host() + kCountsOffset);
    const auto num_counts = static_cast<size_t>(group_.size() * group_.size());
    if (!is_cached) {
      handle.counts.assign(counts->copies, counts->copies + num_counts);
    }
    if (status == HostCounts::kMoved) {
      return;
    }
    transfer.lease.reset();
    int64_t needed = 0;
    for (int r = 0; r < group_.size(); ++r) {
      needed = std::max(needed, block_bytes(handle.counts, group_.size(), r, transfer.layout));
    }
    add_bank(needed);
  }
}

// Where counts stay on the device nobody learns of a bank that is too small, so hosts agree first.
int64_t CudaHighThroughput::reserve_bank(int64_t bytes, int64_t num_tokens) {
  struct Need {
    int64_t bank_bytes;
    int64_t tokens;
  };
  const Need mine{banks_.bytes(banks_.pick()) < bytes ? bytes : 0, num_tokens};
  std::vector<Need> needs(static_cast<size_t>(group_.size()));
  all_gather_bytes(group_, "receive banks", &mine, sizeof(mine), needs.data());
  Need most{};
  for (const Need& need : needs) {
    most.bank_bytes = std::max(most.bank_bytes, need.bank_bytes);
    most.tokens = std::max(most.tokens, need.tokens);
  }
  if (most.bank_bytes > 0) {
    add_bank(most.bank_bytes);
  }
  return most.tokens;
}

void CudaHighThroughput::reserve_slots(int64_t bytes, int64_t num_flags) {
  const auto grow = [&](std::unique_ptr<Window>& window, int64_t wanted) {
    if (window == nullptr || window->bytes() < wanted) {
      if (last_stream_) {
        last_stream_->synchronize();  // nobody may be storing to the old one any more
      }
      window = group_.make_window("combine slots", wanted + wanted / 4);
    }
  };
  grow(slots_, bytes);
  grow(flags_, num_flags * static_cast<int64_t>(sizeof(uint64_t)));
}

Tensor CudaHighThroughput::field(const Transfer& transfer,
                                 int index,
                                 DType dtype,
                                 const Shape& shape,
                                 int64_t layout_rows) const {
  if (layout_rows == 0) {
    return Tensor::empty(shape, dtype, device_);
  }
  return Tensor::share(
      transfer.lease,
      banks_.window(transfer.bank).local() + transfer.layout.offset(index, layout_rows), shape,
      dtype, device_);
}

DispatchOutput CudaHighThroughput::dispatch(const DispatchInput& input, const Stream& stream) {
  check();
  expect_dtype(input.topk_ids, DType::kI32, "topk_ids");
  expect_eq(input.topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_eq(to_string(input.topk_ids.device()), to_string(device_), "device of topk_ids");
  expect_eq(to_string(stream.device()), to_string(device_), "device of the stream");
  const int64_t num_tokens = input.topk_ids.dim(0);
  const int64_t topk = input.topk_ids.dim(1);
  expect_ge(topk, 1, "topk");
  expect_le(topk, kMaxCudaTopk, "topk of a dispatch on CUDA");
  expect_ge(input.expert_alignment, 1, "expert_alignment");
  expect_ge(input.capacity, 0, "capacity");
  if (input.topk_weights) {
    expect_shape(input.topk_weights, input.topk_ids.shape(), "topk_weights");
    expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
    expect_eq(to_string(input.topk_weights.device()), to_string(device_), "device of topk_weights");
  }
  Transfer transfer{input.payloads,
                    RowLayout(payload_row_bytes(input.payloads, num_tokens, device_), topk,
                              input.topk_weights.defined())};
  set_payloads(transfer, num_tokens);
  auto handle = std::make_shared<CudaHandle>();
  handle->rank = group_.rank();
  handle->num_ranks = group_.size();
  handle->tokens = num_tokens;
  handle->topk = topk;
  handle->counts_on_host = input.capacity == 0;
  handle->capacity = input.capacity;
  handle->index = arena_.take({num_tokens, group_.size()}, DType::kI32);
  handle->copies = arena_.take({group_.size(), group_.size()}, DType::kI32);
  handle->expert_num_tokens = arena_.take({num_local_}, DType::kI32);
  handle->num_rows_on_device = arena_.take({1}, DType::kI32);

  DispatchArgs& args = transfer.args;
  args.topk = static_cast<int>(topk);
  args.ids = input.topk_ids.data<int32_t>();
  args.weights = input.topk_weights ? input.topk_weights.data<float>() : nullptr;
  args.expert_alignment = static_cast<int>(input.expert_alignment);
  args.capacity_rows = static_cast<uint32_t>(input.capacity);
  args.index = handle->index.data<int32_t>();
  args.copies = reinterpret_cast<uint32_t*>(handle->copies.raw());
  args.expert_num_tokens = handle->expert_num_tokens.data<int32_t>();
  args.num_rows = handle->num_rows_on_device.data<int32_t>();

  order_after_last(stream);
  stream.wait(input.previous);
  if (handle->counts_on_host) {
    launch_until_moved(transfer, *handle, false, stream);
    handle->rows = 0;
    for (int s = 0; s < group_.size(); ++s) {
      handle->rows += handle->counts[static_cast<size_t>(s * group_.size() + group_.rank())];
    }
  } else {
    handle->most_tokens = reserve_bank(transfer.layout.block_bytes(input.capacity), num_tokens);
    pick_bank(transfer);
    launch(transfer, stream);
    handle->rows = input.capacity;
  }
  last_event_ = stream.record();

  const int64_t rows = handle->rows;
  DispatchOutput output;
  const RowLayout& layout = transfer.layout;
  for (int f = 0; f < layout.num_payloads(); ++f) {
    const Tensor& payload = input.payloads[static_cast<size_t>(f)];
    output.payloads.push_back(field(transfer, f, payload.dtype(), with_rows(payload, rows), rows));
  }
  output.topk_ids = field(transfer, layout.ids_field(), DType::kI32, {rows, topk}, rows);
  if (layout.has_weights()) {
    output.topk_weights = field(transfer, layout.weights_field(), DType::kF32, {rows, topk}, rows);
  }
  handle->source_tokens = field(transfer, layout.token_field(), DType::kI32, {rows}, rows);
  output.expert_num_tokens = handle->expert_num_tokens;
  if (!handle->counts_on_host) {
    output.num_rows = handle->num_rows_on_device;
  }
  output.handle = handle;
  output.event = last_event_;
  return output;
}

DispatchOutput CudaHighThroughput::dispatch_cached(std::span<const Tensor> payloads,
                                                   const DispatchHandle& handle_,
                                                   const Stream& stream) {
  check();
  const CudaHandle& handle = own_handle(handle_);
  expect_eq(to_string(stream.device()), to_string(device_), "device of the stream");
  Transfer transfer{payloads,
                    RowLayout(payload_row_bytes(payloads, handle.tokens, device_), 0, false)};
  set_payloads(transfer, handle.tokens);
  DispatchArgs& args = transfer.args;
  args.capacity_rows = static_cast<uint32_t>(handle.capacity);
  args.index = handle.index.data<int32_t>();
  args.copies = reinterpret_cast<uint32_t*>(handle.copies.raw());

  order_after_last(stream);
  if (handle.counts_on_host) {
    CudaHandle counts;
    counts.counts = handle.counts;
    launch_until_moved(transfer, counts, true, stream);
  } else {
    reserve_bank(transfer.layout.block_bytes(handle.capacity), handle.tokens);
    pick_bank(transfer);
    launch(transfer, stream);
  }
  last_event_ = stream.record();
  DispatchOutput output;
  for (int f = 0; f < transfer.layout.num_payloads(); ++f) {
    const Tensor& payload = payloads[static_cast<size_t>(f)];
    output.payloads.push_back(
        field(transfer, f, payload.dtype(), with_rows(payload, handle.rows), handle.rows));
  }
  output.event = last_event_;
  return output;
}

namespace {

SumType sum_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return SumType::kF32;
    case DType::kF16:
      return SumType::kF16;
    case DType::kBF16:
      return SumType::kBF16;
    default:
      throw InvalidArgument(fmt::format("x dtype is {}, expected f32, f16 or bf16", name(dtype)));
  }
}

bool is_word_aligned(const Tensor& t) {
  return !t || reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0;
}

}  // namespace

HighThroughput::CombineOutput CudaHighThroughput::combine(const HighThroughput::CombineInput& input,
                                                          const DispatchHandle& handle_,
                                                          const Stream& stream,
                                                          const Tensor& out_x) {
  check();
  const CudaHandle& handle = own_handle(handle_);
  const Tensor& x = input.x;
  expect_defined(x, "x");
  CombineArgs args{};
  args.type = sum_type(x.dtype());
  expect_eq(x.num_dims(), 2, "dimensions of x");
  expect_eq(x.dim(0), handle.rows, "rows of x");
  const Shape shape = {handle.tokens, x.dim(1)};
  const auto expect_like_x = [&](const Tensor& t, const Shape& expected, const char* what) {
    if (t) {
      expect_shape(t, expected, what);
      expect_dtype(t, x.dtype(), what);
      expect_eq(to_string(t.device()), to_string(device_), fmt::format("device of {}", what));
    }
  };
  expect_like_x(x, x.shape(), "x");
  expect_like_x(input.bias[0], shape, "bias");
  expect_like_x(input.bias[1], shape, "bias");
  expect_like_x(out_x, shape, "out_x");
  if (input.topk_weights) {
    expect_shape(input.topk_weights, {handle.rows, handle.topk}, "topk_weights");
    expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
    expect_eq(to_string(input.topk_weights.device()), to_string(device_), "device of topk_weights");
  }
  expect_eq(to_string(stream.device()), to_string(device_), "device of the stream");

  const int num_ranks = group_.size();
  const int64_t bytes_of_row = row_bytes(x.dtype(), x.dim(1));
  args.row_bytes = static_cast<uint32_t>(bytes_of_row);
  args.rows_per_chunk = chunk_rows(bytes_of_row);
  int64_t slots = handle.most_tokens * std::min<int64_t>(handle.topk, num_ranks - 1);
  if (handle.counts_on_host) {
    slots = 0;
    for (int r = 0; r < num_ranks; ++r) {
      slots = std::max<int64_t>(slots, combine_slots(handle.counts.data(), num_ranks, r));
    }
  }
  const int64_t weight_bytes =
      input.topk_weights ? slots * handle.topk * static_cast<int64_t>(sizeof(float)) : 0;
  reserve_slots(combine_weights_offset(static_cast<uint32_t>(slots), bytes_of_row) + weight_bytes,
                slots / args.rows_per_chunk + num_ranks);

  HighThroughput::CombineOutput output;
  output.x = out_x ? out_x : arena_.take(shape, x.dtype());
  if (input.topk_weights) {
    output.topk_weights = arena_.take({handle.tokens, handle.topk}, DType::kF32);
  }
  args.signals = signals_;
  args.control_layout = control_layout_;
  for (int r = 0; r < num_ranks; ++r) {
    args.control[r] = control_->peer(r);
    args.slots[r] = slots_->peer(r);
    args.flags[r] = reinterpret_cast<uint64_t*>(flags_->peer(r));
  }
  args.state = static_cast<CallState*>(state_.raw());
  args.copies = reinterpret_cast<const uint32_t*>(handle.copies.raw());
  args.index = handle.index.data<int32_t>();
  args.num_tokens = handle.tokens;
  args.topk = static_cast<int>(handle.topk);
  args.x = x.bytes();
  args.out = output.x.bytes();
  bool is_aligned = bytes_of_row % 16 == 0 && is_word_aligned(x) && is_word_aligned(output.x);
  for (size_t b = 0; b < input.bias.size(); ++b) {
    args.bias[b] = input.bias[b] ? input.bias[b].bytes() : nullptr;
    is_aligned = is_aligned && is_word_aligned(input.bias[b]);
  }
  args.is_aligned = is_aligned;
  args.in_bulk = bytes_of_row % 16 == 0 && is_word_aligned(x);
  if (input.topk_weights) {
    args.weights = input.topk_weights.data<float>();
    args.out_weights = output.topk_weights.data<float>();
  }
  args.shared.num_ranks = num_ranks;
  args.shared.push_warps = combine_config_.num_warps > 0 ? combine_config_.num_warps : kPushWarps;
  expect_le(args.shared.push_warps, kMaxPushWarps, "warps that push rows");
  args.shared.stages = 0;
  const int64_t room = shared_bytes_ - args.shared.bytes() - kMaxPushWarps * kMaxStages * 8;
  const int64_t most_stages = room / kPushStageBytes / args.shared.push_warps;
  args.shared.stages =
      static_cast<int>(combine_config_.num_stages > 0 ? combine_config_.num_stages
                                                      : std::min<int64_t>(most_stages, kMaxStages));
  expect_ge(args.shared.stages, 2, "stages of each warp that pushes rows");
  expect_le(args.shared.stages, most_stages, "stages of each warp that pushes rows");

  order_after_last(stream);
  stream.wait(input.previous);
  const cuda::DeviceGuard guard(device_.index);
  cuda::check_cuda(
      launch_combine(args, combine_config_.num_sms, cuda::as_stream(stream.native_handle())),
      "combine kernel");
  last_event_ = stream.record();
  output.event = last_event_;
  return output;
}

TransportStatistics CudaHighThroughput::statistics() const {
  if (last_stream_) {
    last_stream_->synchronize();
  }
  CallState state{};
  cuda::copy_now(&state, state_.raw(), sizeof(state), device_.index);
  return {static_cast<int64_t>(state.selections), static_cast<int64_t>(state.copies), 0};
}

}  // namespace moebius::comm
