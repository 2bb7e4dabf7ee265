// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <limits>

#include "comm/high_throughput/cuda/cuda_transport.h"
#include "comm/routing/payloads.h"
#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "core/same_device.h"
#include "moebius/deadline.h"

namespace moebius::comm {

namespace {

uint64_t load_acquire(const uint64_t* word) {
  return std::atomic_ref<const uint64_t>(*word).load(std::memory_order_acquire);
}

struct Part {
  Tensor* tensor;
  Shape shape;
};

// Takes one block for i32 tensors, which takes the host less time than one for each.
void take_together(DeviceArena& arena, Launch launched, std::initializer_list<Part> parts) {
  constexpr int64_t kAlignment = 64;  // elements
  const auto room = [](const Part& part) {
    return (part.shape.numel() + kAlignment - 1) / kAlignment * kAlignment;
  };
  int64_t total = 0;
  for (const Part& part : parts) {
    total += room(part);
  }
  const Tensor block = arena.take({total}, DType::kI32, launched);
  int64_t begin = 0;
  for (const Part& part : parts) {
    *part.tensor =
        block.slice(begin, begin + part.shape.numel()).reinterpret(DType::kI32, part.shape);
    begin += room(part);
  }
}

int64_t block_bytes(std::span<const uint32_t> counts,
                    int num_ranks,
                    int rank,
                    const RowLayout& layout) {
  return layout.block_bytes(copies_to(counts, num_ranks, rank));
}

}  // namespace

void CudaHighThroughput::set_payloads(Transfer& transfer,
                                      int64_t num_tokens,
                                      bool may_go_in_waves) const {
  DispatchArgs& args = transfer.args;
  const RowLayout& layout = transfer.layout;
  args.signals = signals_;
  args.control_layout = control_layout_;
  args.banks = reinterpret_cast<std::byte* const*>(bank_table_.raw());
  args.state = static_cast<CallState*>(state_.raw());
  args.num_tokens = num_tokens;
  args.is_cached = transfer.made == nullptr;
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

  args.shared.num_ranks = group.size();
  args.shared.num_experts = num_experts_;
  args.shared.num_fields = layout.num_fields();
  args.shared.warps = kMaxWarps;
  args.shared.stages = kMaxStages;
  args.shared.in_waves = may_go_in_waves;
  const StagePlan plan = make_stage_plan(shapes, shared_bytes_ - args.shared.bytes(),
                                         configs.dispatch.num_warps, configs.dispatch.num_stages);
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

// A rank that has too many tokens for waves asks for none, and then no rank sends in waves.
void CudaHighThroughput::set_waves(Transfer& transfer, const DispatchInput& input) {
  DispatchArgs& args = transfer.args;
  if (input.early_rows == 0 || !input.topk_ids ||
      args.num_tokens > most_tokens_in_waves(configs.dispatch.num_sms, args.shared.warps)) {
    return;
  }
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  args.early_rows = static_cast<uint32_t>(std::min(input.early_rows, kMost));
  args.most_early_rows = static_cast<uint32_t>(
      input.most_early_rows > 0 ? std::min(input.most_early_rows, kMost) : kMost);
  args.experts_per_wave = experts_per_wave(control_layout_.max_local_experts);
  transfer.waves_of = arena_.take({args.num_tokens}, DType::kI32, transfer.launched);
  transfer.wave_of = arena_.take({args.num_tokens, group.size()}, DType::kU8, transfer.launched);
  args.waves_of = reinterpret_cast<uint32_t*>(transfer.waves_of.raw());
  args.wave_of = transfer.wave_of.data<uint8_t>();
}

void CudaHighThroughput::pick_bank(Transfer& transfer) {
  transfer.lease.reset();
  transfer.bank = banks_.pick(transfer.launched);
  const int64_t bytes = banks_.bytes(transfer.bank);
  if (transfer.bank != BankPool::kNone) {
    transfer.lease = banks_.lease_in_order(transfer.bank, transfer.launched, transfer.stream);
  }
  transfer.args.bank = static_cast<uint32_t>(std::max<int64_t>(transfer.bank, 0));
  transfer.args.bank_units = static_cast<uint32_t>(bytes / kFieldAlignment);
}

void CudaHighThroughput::add_bank(int64_t bytes) {
  expect_le(num_banks_ + 1, kMaxBanks, "receive banks of one object");
  const int64_t bank = banks_.add(group, bytes);
  ++num_banks_;
  std::vector<std::byte*> peers;
  for (int r = 0; r < group.size(); ++r) {
    peers.push_back(banks_.window(bank).peer(r));
  }
  const int64_t row = bank_table_.nbytes() / kMaxBanks;
  cuda::copy_now(bank_table_.bytes() + bank * row, peers.data(), row, device_.index);
}

void CudaHighThroughput::launch(Transfer& transfer) {
  pick_bank(transfer);
  const cuda::DeviceGuard guard(device_.index);
  cuda::check_cuda(launch_dispatch(transfer.args, configs.dispatch.num_sms,
                                   cuda::as_stream(transfer.stream.native_handle())),
                   "dispatch kernel");
  transfer.event = record(transfer.stream);
}

HostCounts::Status CudaHighThroughput::await_counts(uint32_t tag, const Stream& stream) {
  auto* record = mapped_.host_as<FaultRecord>();
  const auto* counts = reinterpret_cast<const HostCounts*>(mapped_.host() + kHostCountsOffset);
  // The kernel itself keeps the deadline.  The host's deadline is for a device that does not answer
  // at all; meanwhile the host looks for failures of other hosts.
  const Deadline deadline = Deadline::after(2 * group.timeout() + std::chrono::seconds(5));
  const auto slice =
      std::max<std::chrono::milliseconds>(group.timeout() / 4, std::chrono::milliseconds(1));
  const auto is_here = [&] {
    return signal_epoch(load_acquire(&counts->word)) == tag || load_acquire(&record->fault) != 0;
  };
  try {
    while (!is_here()) {
      const Deadline look = Deadline::after(slice);
      group.wait_until(
          "dispatch counts", group.rank(), [&] { return is_here() || look.expired(); },
          [] { return std::string("expected counts of the own GPU"); });
      if (deadline.expired() && !is_here()) {
        throw CommError(fmt::format("rank {}: dispatch counts: {} does not answer", group.rank(),
                                    to_string(device_)),
                        group.rank(), group.rank());
      }
    }
  } catch (const CommError& error) {
    broken_ = error;
    std::atomic_ref(record->stop).store(1);  // ends kernels of this rank that wait
    const cuda::DeviceGuard guard(device_.index);
    cuda::log_cuda_error(
        launch_stop(signals_, static_cast<const CallState*>(state_.raw()), cuda::as_stream(stream)),
        "stop kernel");
    throw;
  }
  if (signal_epoch(load_acquire(&counts->word)) != tag) {
    check();
  }
  return static_cast<HostCounts::Status>(signal_value(load_acquire(&counts->word)));
}

void CudaHighThroughput::start(const std::shared_ptr<Transfer>& transfer, int64_t num_tokens) {
  transfer->args.capacity_rows = static_cast<uint32_t>(transfer->capacity);
  if (transfer->capacity > 0) {
    const int64_t most_tokens = agree_on_room(*transfer, num_tokens);
    if (transfer->made) {
      transfer->made->most_tokens = most_tokens;
    }
    launch(*transfer);
    transfer->is_settled = true;
    return;
  }
  transfer->args.host = reinterpret_cast<HostCounts*>(mapped_.device() + kHostCountsOffset);
  transfer->args.host_tag = ++tag_;
  launch(*transfer);
  unsettled_ = transfer;
}

void CudaHighThroughput::settle() {
  if (!unsettled_) {
    return;
  }
  const std::shared_ptr<Transfer> transfer = std::exchange(unsettled_, nullptr);
  while (await_counts(transfer->args.host_tag, transfer->stream) == HostCounts::kGrow) {
    read_counts(*transfer);
    int64_t needed = 0;
    for (int r = 0; r < group.size(); ++r) {
      needed = std::max(needed, block_bytes(transfer->counts, group.size(), r, transfer->layout));
    }
    transfer->lease.reset();
    add_bank(needed);
    transfer->args.host_tag = ++tag_;
    launch(*transfer);
  }
  read_counts(*transfer);
  transfer->is_settled = true;
  count_copies(*transfer);
  expect_good_layouts();
}

void CudaHighThroughput::settle(const Transfer& transfer) {
  if (unsettled_.get() == &transfer) {
    settle();
  }
  if (!transfer.is_settled) {
    check();
    throw Error("this dispatch has failed in a later call");
  }
}

// Where the route is known, the transfer has its counts already.
void CudaHighThroughput::read_counts(Transfer& transfer) const {
  if (transfer.made) {
    const auto* counts = reinterpret_cast<const HostCounts*>(mapped_.host() + kHostCountsOffset);
    transfer.counts.assign(counts->copies, counts->copies + int64_t{group.size()} * group.size());
    transfer.epoch = counts->epoch;
    transfer.is_in_waves = counts->in_waves != 0;
    if (transfer.args.host_experts != nullptr) {
      const auto* experts =
          reinterpret_cast<const uint32_t*>(mapped_.host() + host_experts_offset());
      transfer.expert_counts.assign(experts, experts + num_local_);
    }
  }
}

void CudaHighThroughput::count_copies(const Transfer& transfer) const {
  for (int r = 0; r < group.size(); ++r) {
    const int64_t rows = copies_between(transfer.counts, group.size(), group.rank(), r);
    group.count_traffic(r, rows * transfer.layout.row_bytes());
  }
}

// When counts stay on the device, no host learns of a bank that is too small, so hosts agree on the
// room first.  They agree on faults, too: a kernel tells all devices, but not at the same time, and
// hosts that know nothing yet would miss one that has left.
int64_t CudaHighThroughput::agree_on_room(const Transfer& transfer, int64_t num_tokens) {
  struct Need {
    int64_t bank_bytes;
    int64_t tokens;
    int64_t combine_row_bytes;
    uint64_t fault;
    int64_t failed_rank;  // -1: this host knows of none
  };
  const int64_t bytes = transfer.layout.block_bytes(transfer.capacity);
  const uint64_t fault = reported_fault();
  const int64_t free_bytes = banks_.bytes(banks_.pick(transfer.launched));
  const Need mine{free_bytes < bytes ? bytes : 0, num_tokens, transfer.combine_row_bytes, fault,
                  fault != 0 ? unpack_fault(fault).guilty
                  : broken_  ? broken_->peer()
                             : -1};
  std::vector<Need> needs(static_cast<size_t>(group.size()));
  all_gather_bytes(group, "room of a dispatch", &mine, sizeof(mine), needs.data());
  Need most{0, 0, 0, 0, -1};
  for (const Need& need : needs) {
    most.bank_bytes = std::max(most.bank_bytes, need.bank_bytes);
    most.tokens = std::max(most.tokens, need.tokens);
    most.combine_row_bytes = std::max(most.combine_row_bytes, need.combine_row_bytes);
    if (most.failed_rank < 0) {
      most.fault = need.fault;
      most.failed_rank = need.failed_rank;
    }
  }
  if (most.failed_rank >= 0) {
    if (fault == 0 && cuda::capture_id(transfer.stream.native_handle(), device_.index) == 0) {
      transfer.stream.synchronize();  // this rank's kernels will report it, too, and know more
    }
    check();
    const int rank = group.rank();
    const auto failed = static_cast<int>(most.failed_rank);
    broken_ = most.fault != 0
                  ? make_comm_error(rank, most.fault, 0, group.timeout().count())
                  : CommError(fmt::format("rank {}: dispatch: rank {} failed", rank, failed), rank,
                              failed);
    check();
  }
  if (most.bank_bytes > 0) {
    add_bank(most.bank_bytes);
  }
  if (most.combine_row_bytes > 0) {
    const int64_t topk = transfer.args.topk;
    reserve_slots(most.tokens * most_copies(topk, group.size()), most.combine_row_bytes,
                  transfer.layout.has_weights() ? row_bytes(DType::kF32, topk) : 0,
                  /*may_be_recorded=*/true);
  }
  return most.tokens;
}

Tensor CudaHighThroughput::field(const Transfer& transfer,
                                 int index,
                                 DType dtype,
                                 const Shape& shape,
                                 int64_t layout_rows) const {
  if (layout_rows == 0) {
    return Tensor::borrow(nullptr, shape, dtype, device_);
  }
  return Tensor::share(
      transfer.lease,
      banks_.window(transfer.bank).local() + transfer.layout.offset(index, layout_rows), shape,
      dtype, device_);
}

Pending<DispatchOutput> CudaHighThroughput::dispatch_async(const DispatchInput& input,
                                                           const Stream& stream) {
  settle();
  if (input.capacity == 0) {
    check();
  }
  expect_good_layouts();
  expect_dispatch(input, stream);
  const int64_t num_tokens = num_tokens_of(input);
  const int64_t topk = topk_of(input);
  const Launch launched = launch_on(stream);
  auto handle = std::make_shared<CudaHandle>();
  handle->rank = group.rank();
  handle->num_ranks = group.size();
  handle->tokens = num_tokens;
  handle->topk = topk;
  handle->counts_on_host = input.capacity == 0;
  handle->capacity = input.capacity;
  take_together(arena_, launched,
                {{&handle->index, {num_tokens, group.size()}},
                 {&handle->copies, {group.size(), group.size()}},
                 {&handle->expert_num_tokens, {num_local_}},
                 {&handle->num_rows_on_device, {1}},
                 {&handle->prefix, {group.size(), group.size()}}});

  auto transfer = std::make_shared<Transfer>(
      Transfer{.payloads = input.payloads,
               .layout = RowLayout(payload_row_bytes(input.payloads, num_tokens, device_),
                                   routing_of(input, group.topology())),
               .stream = stream,
               .launched = launched,
               .capacity = input.capacity,
               .combine_row_bytes = input.combine_row_bytes,
               .id_dtype = input.topk_ids ? input.topk_ids.dtype() : DType::kI32,
               .made = handle});
  set_payloads(*transfer, num_tokens, input.early_rows > 0);
  set_waves(*transfer, input);
  DispatchArgs& args = transfer->args;
  args.topk = static_cast<int>(topk);
  args.ids = Ids::of(input.topk_ids);
  args.weights = input.topk_weights ? input.topk_weights.data<float>() : nullptr;
  args.expert_alignment = static_cast<int>(input.expert_alignment);
  args.index = handle->index.data<int32_t>();
  args.copies = reinterpret_cast<uint32_t*>(handle->copies.raw());
  args.expert_num_tokens = handle->expert_num_tokens.data<int32_t>();
  args.num_rows = handle->num_rows_on_device.data<int32_t>();
  args.rank_prefix = handle->prefix.data<int32_t>();
  if (has_layout(input)) {
    args.is_in = input.layout.is_token_in_rank.data<bool>();
    args.selections_of = input.layout.tokens_per_expert.data<int32_t>();
  }
  if (input.lists_counts && input.capacity == 0) {
    args.host_experts = reinterpret_cast<uint32_t*>(mapped_.device() + host_experts_offset());
  }

  order_after_last(stream);
  stream.wait(input.previous);
  start(transfer, num_tokens);
  // The hook keeps the inputs, since the call may have to be launched again.
  const auto hook = [this, transfer, ids = input.topk_ids, weights = input.topk_weights,
                     layout = input.layout] { settle(*transfer); };
  return {hook, [this, transfer, hook] {
            hook();
            DispatchOutput output = receive(*transfer);
            transfer->lease.reset();  // only the output keeps the bank, however long this lives
            transfer->payloads.clear();
            return output;
          }};
}

DispatchOutput CudaHighThroughput::receive(const Transfer& transfer) const {
  const RowLayout& layout = transfer.layout;
  CudaHandle& handle = *transfer.made;
  handle.counts = transfer.counts;
  handle.rows = transfer.capacity;
  if (handle.counts_on_host) {
    handle.rows += copies_to(handle.counts, group.size(), group.rank());
  }
  const int64_t rows = handle.rows;
  DispatchOutput output;
  output.payloads = payload_fields(transfer, rows);
  const Shape slots = {rows, handle.topk};
  if (handle.topk > 0) {
    output.topk_ids = field(transfer, layout.ids_field(), transfer.id_dtype, slots, rows);
  }
  if (layout.has_weights()) {
    output.topk_weights = field(transfer, layout.weights_field(), DType::kF32, slots, rows);
  }
  handle.source_tokens = field(transfer, layout.token_field(), DType::kI32, {rows}, rows);
  output.expert_num_tokens = handle.expert_num_tokens;
  output.expert_counts = transfer.expert_counts;
  if (!handle.counts_on_host) {
    output.num_rows = handle.num_rows_on_device;
    if (cuda::capture_id(transfer.stream.native_handle(), device_.index) == 0) {
      handle.dispatched = transfer.event;
    }
  }
  output.handle = transfer.made;
  output.event = transfer.event;
  output.arrivals = arrivals_of(transfer);
  return output;
}

RowArrivals CudaHighThroughput::arrivals_of(const Transfer& transfer) const {
  RowArrivals arrivals;
  if (transfer.is_in_waves) {
    arrivals.complete = transfer.event;
    const std::byte* own = control_->local();
    arrivals.signals.words = reinterpret_cast<const uint64_t*>(own + control_layout_.arrived(0, 0));
    arrivals.signals.failed = reinterpret_cast<const uint64_t*>(own + ControlLayout::kAbort);
    arrivals.signals.epoch = transfer.epoch;
    arrivals.signals.num_sources = group.size();
    arrivals.signals.experts_per_wave = transfer.args.experts_per_wave;
  }
  return arrivals;
}

std::vector<Tensor> CudaHighThroughput::payload_fields(const Transfer& transfer,
                                                       int64_t rows) const {
  std::vector<Tensor> fields;
  for (int f = 0; f < transfer.layout.num_payloads(); ++f) {
    const Tensor& payload = transfer.payloads[static_cast<size_t>(f)];
    fields.push_back(field(transfer, f, payload.dtype(), with_rows(payload, rows), rows));
  }
  return fields;
}

Pending<DispatchOutput> CudaHighThroughput::dispatch_cached_async(const CachedDispatchInput& input,
                                                                  const DispatchHandle& handle_,
                                                                  const Stream& stream) {
  settle();
  const CudaHandle& handle = own_cuda_handle(handle_);
  if (handle.counts_on_host) {
    check();
  }
  expect_stream(stream, device_);
  const auto transfer = std::make_shared<Transfer>(
      Transfer{.payloads = input.payloads,
               .layout = RowLayout(payload_row_bytes(input.payloads, handle.tokens, device_)),
               .stream = stream,
               .launched = launch_on(stream),
               .capacity = handle.capacity,
               .counts = handle.counts});
  set_payloads(*transfer, handle.tokens, false);
  transfer->args.index = handle.index.data<int32_t>();
  transfer->args.copies = reinterpret_cast<uint32_t*>(handle.copies.raw());
  order_after_last(stream);
  stream.wait(input.previous);
  start(transfer, handle.tokens);
  // The host only has to learn whether banks must grow.
  return in_halves([this, transfer] { settle(*transfer); },
                   [this, transfer, rows = handle.rows] {
                     DispatchOutput output;
                     output.payloads = payload_fields(*transfer, rows);
                     output.event = transfer->event;
                     transfer->lease.reset();
                     transfer->payloads.clear();
                     return output;
                   });
}

}  // namespace moebius::comm
