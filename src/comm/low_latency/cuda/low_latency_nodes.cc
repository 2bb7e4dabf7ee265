// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LowLatency on GPUs of several nodes.  Calls are collective: mailboxes and returned rows are
// messages of exchanges on the stream, within a node too.  Hosts wait for the counts of a call, so
// nothing can be captured in a CUDA graph.  No kernel waits for a peer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "comm/device/device_arena.h"
#include "comm/device/last_work.h"
#include "comm/group/cuda/cuda_group.h"
#include "comm/group/given_up.h"
#include "comm/low_latency/cuda/low_latency_messages.h"
#include "comm/low_latency/cuda/make_transport.h"
#include "comm/routing/cuda/routing_tables.h"
#include "comm/routing/route.h"
#include "core/cuda/runtime.h"

namespace moebius {

namespace {

using comm::Mailboxes;

class CudaNodesLowLatency;

// A result, and what combine needs of it.
struct NodesHandle final : LowLatencyHandle, std::enable_shared_from_this<NodesHandle> {
  const CudaNodesLowLatency* owner = nullptr;
  int64_t num_tokens = 0;
  int64_t num_rows = 0;  // of an expert in the outputs
  mutable bool is_combined = false;
  Mailboxes boxes;                     // of this call
  std::vector<int64_t> selections_to;  // [R]: selections of this rank's tokens
  Tensor received;                     // u8: the mailboxes of all ranks
  // These are as in UnpackArgs.
  Tensor rows, numbers, from_sources;

  explicit NodesHandle(const Mailboxes& made) : boxes(made) {}
};

class CudaNodesLowLatency final : public LowLatency::State {
 public:
  CudaNodesLowLatency(Group& g, ExpertPlacement p, const LowLatencyOptions& o);
  ~CudaNodesLowLatency() override {
    if (last_stream_) {
      comm::await_last_work(*last_stream_);
    }
  }

  Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                   const Stream& stream) override;
  Pending<LowLatencyCombineOutput> combine_async(const Combine& call) override;
  Tensor combine_buffer(const LowLatencyHandle& handle) override;
  void check() const override {
    if (group.has_given_up()) {
      comm::throw_given_up(group, "low latency");
    }
  }
  void set_dead(int rank, bool is_dead_now) override {
    group.set_dead(rank, is_dead_now);
    dead[static_cast<size_t>(rank)] = is_dead_now;
  }
  TransportStatistics statistics() const override { return sent_; }
  Tensor expert_statistics() const override {
    const Tensor result = Tensor::empty(expert_rows_.shape(), DType::kI64);
    cuda::copy_now(result.raw(), expert_rows_.raw(), expert_rows_.nbytes(), device_.index);
    return result;
  }
  void reset_statistics() override {
    sent_ = {};
    cuda::fill_zero_now(expert_rows_.raw(), expert_rows_.nbytes(), device_.index);
  }
  int64_t bytes() const override {
    return arena_.bytes() + rank_of_.nbytes() + local_of_.nbytes() + expert_rows_.nbytes();
  }

 private:
  // Where each token's messages go, on the device, and how many selections each rank gets.
  struct Counted {
    Tensor index;   // i32 [T, R]
    Tensor copies;  // i32 [R]
    std::vector<int64_t> selections_to;
  };
  Counted count(const LowLatencyDispatchInput& input, const Stream& stream);
  LowLatencyDispatchOutput unpack(const std::shared_ptr<NodesHandle>& handle,
                                  const LowLatencyDispatchInput& input,
                                  const Stream& stream);
  const NodesHandle& own_handle(const LowLatencyHandle& handle) const;

  const Device device_;
  const LowLatencyLayout layout_;
  comm::DeviceArena arena_;
  Tensor rank_of_;      // i32 [E]
  Tensor local_of_;     // i32 [E]
  Tensor expert_rows_;  // i64 [L]
  int64_t calls_ = 0;
  std::array<std::weak_ptr<NodesHandle>, 2> results_;
  TransportStatistics sent_;
  std::optional<Stream> last_stream_;  // the stream of the latest call
};

CudaNodesLowLatency::CudaNodesLowLatency(Group& g, ExpertPlacement p, const LowLatencyOptions& o)
    : State(g, std::move(p), o),
      device_(g.device()),
      layout_(LowLatencyLayout::make(o, g.size())),
      arena_(device_),
      expert_rows_(Tensor::zeros({num_local()}, DType::kI64, device_)) {
  expect_le(g.size(), comm::kMaxCudaRanks, "ranks of low latency on GPUs");
  if (o.sum == LowLatencySum::kRanks) {
    throw Unsupported(
        fmt::format("low latency with sums per rank: ranks on {} nodes, they must share one",
                    g.topology().num_nodes()));
  }
  std::vector<int32_t> rank_of, local_of;
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    rank_of.push_back(placement.rank_of(e));
    local_of.push_back(static_cast<int32_t>(placement.local_index(e)));
  }
  rank_of_ = comm::upload(rank_of, device_);
  local_of_ = comm::upload(local_of, device_);
  comm::load_routing_kernels(device_.index);
  comm::load_message_kernels(device_.index, o.in_dtype);
  group.barrier("low latency set-up");
}

CudaNodesLowLatency::Counted CudaNodesLowLatency::count(const LowLatencyDispatchInput& input,
                                                        const Stream& stream) {
  const Tensor& topk_ids = input.topk_ids;
  const int num_ranks = group.size();
  const auto num_experts = static_cast<int>(placement.num_experts());
  Counted counted{arena_.take({topk_ids.dim(0), num_ranks}, DType::kI32),
                  arena_.take({num_ranks}, DType::kI32),
                  std::vector<int64_t>(static_cast<size_t>(num_ranks))};
  const Tensor checked_there = arena_.take(sizeof(comm::CheckedIds));
  const Tensor per_expert = arena_.take({num_experts}, DType::kI32);
  auto* there = reinterpret_cast<comm::CheckedIds*>(checked_there.raw());
  const Ids ids = Ids::of(topk_ids);
  comm::launch_check_ids(ids, topk_ids.numel(), num_experts, there, stream);
  comm::launch_expert_counts(ids, topk_ids.numel(), num_experts, 1, per_expert.data<int32_t>(),
                             stream);
  comm::launch_route({.ids = ids,
                      .num_tokens = topk_ids.dim(0),
                      .topk = static_cast<int>(topk_ids.dim(1)),
                      .num_experts = num_experts,
                      .destination_of = rank_of_.data<int32_t>(),
                      .num_destinations = num_ranks,
                      .index = counted.index.data<int32_t>(),
                      .copies = counted.copies.data<int32_t>()},
                     stream);
  comm::CheckedIds checked{};
  std::vector<int32_t> of_expert(static_cast<size_t>(num_experts));
  std::vector<int32_t> copies(static_cast<size_t>(num_ranks));
  const auto read = [&](void* to, const Tensor& from, size_t bytes) {
    cuda::copy(to, from.raw(), static_cast<int64_t>(bytes), stream.native_handle(), device_.index);
  };
  read(&checked, checked_there, sizeof(checked));
  read(of_expert.data(), per_expert, sizeof(int32_t) * of_expert.size());
  read(copies.data(), counted.copies, sizeof(int32_t) * copies.size());
  stream.synchronize();
  if (checked.bad_id != comm::kNoBadId) {
    throw_bad_id(static_cast<int64_t>(checked.bad_id >> 32), topk_ids.dim(1),
                 static_cast<int32_t>(checked.bad_id), num_experts);
  }
  for (int e = 0; e < num_experts; ++e) {
    expect_room(e, of_expert[static_cast<size_t>(e)], room_of(input));
    counted.selections_to[static_cast<size_t>(placement.rank_of(e))] +=
        of_expert[static_cast<size_t>(e)];
  }
  sent_.selections += static_cast<int64_t>(checked.selections);
  for (int r = 0; r < num_ranks; ++r) {
    const int64_t n = copies[static_cast<size_t>(r)];
    sent_.copies += n;
    sent_.node_copies += group.topology().same_node(r) ? 0 : n;
  }
  return counted;
}

Pending<LowLatencyDispatchOutput> CudaNodesLowLatency::dispatch_async(
    const LowLatencyDispatchInput& input, const Stream& stream) {
  expect_dispatch(input);
  const Tensor& topk_ids = input.topk_ids;
  check();
  const int64_t number = calls_ + 1;
  auto& result = results_[static_cast<size_t>(number % 2)];
  if (!result.expired()) {
    throw_third_result(number);
  }
  last_stream_ = stream;
  stream.wait(input.previous);
  const Counted counted = count(input, stream);
  calls_ = number;
  const Mailboxes boxes(layout_, row_of(input), room_of(input));
  const auto handle = std::make_shared<NodesHandle>(boxes);
  handle->owner = this;
  handle->num_tokens = topk_ids.dim(0);
  handle->num_rows = boxes.num_messages();
  handle->selections_to = counted.selections_to;
  handle->received = arena_.take(group.size() * boxes.mailbox_bytes);
  result = handle;

  const Tensor outgoing = arena_.take(group.size() * boxes.mailbox_bytes);
  comm::launch_send_messages({.boxes = boxes,
                              .dtype = options.in_dtype,
                              .cast = input.cast,
                              .num_tokens = static_cast<int>(topk_ids.dim(0)),
                              .x = input.x.bytes(),
                              .x_scale = input.x_scale ? input.x_scale.bytes() : nullptr,
                              .ids = Ids::of(topk_ids),
                              .tags = input.row_tags ? input.row_tags.data<int32_t>() : nullptr,
                              .index = counted.index.data<int32_t>(),
                              .copies = counted.copies.data<int32_t>(),
                              .out = outgoing.bytes()},
                             stream);
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int r = 0; r < group.size(); ++r) {
    const int64_t at = r * boxes.mailbox_bytes;
    sends.push_back({r, outgoing.bytes() + at, boxes.mailbox_bytes});
    recvs.push_back({r, handle->received.bytes() + at, boxes.mailbox_bytes});
  }
  group.exchange_on(stream, "low latency dispatch", sends, recvs);
  const auto output = std::make_shared<LowLatencyDispatchOutput>();
  return in_halves(
      [this, output, handle, input, stream] { *output = unpack(handle, input, stream); },
      [output] { return std::move(*output); });
}

LowLatencyDispatchOutput CudaNodesLowLatency::unpack(const std::shared_ptr<NodesHandle>& handle,
                                                     const LowLatencyDispatchInput& input,
                                                     const Stream& stream) {
  const int64_t rows = handle->num_rows;
  const Shape slots = {rows, options.topk};
  handle->rows = arena_.take(slots, DType::kI32);
  handle->numbers = arena_.take(slots, DType::kI32);
  handle->from_sources = arena_.take({group.size()}, DType::kI32);
  // The tensors of a result keep the handle alive, as on one node.
  const auto take = [&](const Tensor& given, const Shape& shape, DType dtype) {
    if (given) {
      return given;
    }
    const Tensor memory = arena_.take(shape, dtype);
    return Tensor::share(
        std::make_shared<std::pair<Tensor, std::shared_ptr<NodesHandle>>>(memory, handle),
        memory.raw(), shape, dtype, device_);
  };
  LowLatencyDispatchOutput output;
  const LowLatencyInto& into = input.into;
  const TensorKind x = rows_spec(input, rows);
  output.x = take(into.x, x.shape, x.dtype);
  if (handle->boxes.row.scale_bytes > 0) {
    const TensorKind scale = scale_spec(input, rows);
    output.x_scale = take(into.x_scale, scale.shape, scale.dtype);
  }
  output.expert_num_tokens = take(into.expert_num_tokens, {num_local()}, DType::kI32);
  output.row_tags = take(into.row_tags, {num_local(), rows}, DType::kI32);
  output.source_token = take(into.source_token, {num_local(), rows}, DType::kI32);
  output.source_ranges = take(into.source_ranges, {num_local(), group.size()}, DType::kI64);
  comm::launch_unpack({.boxes = handle->boxes,
                       .in = handle->received.bytes(),
                       .rank_of = rank_of_.data<int32_t>(),
                       .local_of = local_of_.data<int32_t>(),
                       .num_experts = static_cast<int>(placement.num_experts()),
                       .rank = group.rank(),
                       .num_local = static_cast<int>(num_local()),
                       .rows = handle->rows.data<int32_t>(),
                       .numbers = handle->numbers.data<int32_t>(),
                       .from_sources = handle->from_sources.data<int32_t>(),
                       .scales = input.scales,
                       .out = output.x.bytes(),
                       .out_scale = output.x_scale ? output.x_scale.bytes() : nullptr,
                       .out_tags = output.row_tags.data<int32_t>(),
                       .out_tokens = output.source_token.data<int32_t>(),
                       .out_count = output.expert_num_tokens.data<int32_t>(),
                       .out_ranges = output.source_ranges.data<int64_t>(),
                       .received = input.received ? input.received.data<int32_t>() : nullptr,
                       .expert_rows = expert_rows_.data<int64_t>()},
                      stream);
  output.handle = handle;
  output.event = stream.record();
  return output;
}

const NodesHandle& CudaNodesLowLatency::own_handle(const LowLatencyHandle& handle) const {
  const auto* own = dynamic_cast<const NodesHandle*>(&handle);
  expect(own != nullptr && own->owner == this,
         "the handle does not come from a dispatch of this object");
  return *own;
}

Tensor CudaNodesLowLatency::combine_buffer(const LowLatencyHandle& handle) {
  return arena_.take({num_local(), own_handle(handle).num_rows, options.hidden}, options.in_dtype);
}

Pending<LowLatencyCombineOutput> CudaNodesLowLatency::combine_async(const Combine& call) {
  const auto& [input, handle_, stream, out] = call;
  const NodesHandle* own = &own_handle(handle_);
  const Mailboxes& boxes = own->boxes;
  const comm::ReturnedRows rows(boxes, input.coding);
  expect_combine(input, own->num_tokens, own->num_rows, out);
  check();
  expect_combined_once(own->is_combined);
  last_stream_ = stream;
  stream.wait(input.previous);
  const int num_ranks = group.size();
  std::vector<int32_t> from_sources(static_cast<size_t>(num_ranks));
  cuda::copy(from_sources.data(), own->from_sources.raw(), own->from_sources.nbytes(),
             stream.native_handle(), device_.index);
  stream.synchronize();

  comm::ReturnRowsArgs returned{.boxes = boxes,
                                .returned = rows,
                                .dtype = options.in_dtype,
                                .in = own->received.bytes(),
                                .rows = own->rows.data<int32_t>(),
                                .numbers = own->numbers.data<int32_t>(),
                                .x = input.x.bytes(),
                                .block = {}};
  comm::SumReturnedArgs sum{.boxes = boxes,
                            .returned = rows,
                            .dtype = options.in_dtype,
                            .num_tokens = static_cast<int>(own->num_tokens),
                            .block = {},
                            .num_rows = {},
                            .places = nullptr,
                            .weights = input.topk_weights.data<float>(),
                            .out = out.bytes()};
  std::vector<Tensor> blocks;
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int r = 0; r < num_ranks; ++r) {
    const Tensor sent = arena_.take(from_sources[static_cast<size_t>(r)] * rows.message_bytes);
    sum.num_rows[r] = own->selections_to[static_cast<size_t>(r)];
    const Tensor received = arena_.take(sum.num_rows[r] * rows.message_bytes);
    returned.block[r] = sent.bytes();
    sum.block[r] = received.bytes();
    sends.push_back({r, sent.raw(), sent.nbytes()});
    recvs.push_back({r, received.raw(), received.nbytes()});
    blocks.insert(blocks.end(), {sent, received});
  }
  launch_return_rows(returned, stream);
  group.exchange_on(stream, "low latency combine", sends, recvs);
  const Tensor places = arena_.take({own->num_tokens, options.topk}, DType::kI64);
  sum.places = reinterpret_cast<const std::byte**>(places.raw());
  blocks.push_back(places);
  const auto output = std::make_shared<LowLatencyCombineOutput>(LowLatencyCombineOutput{out});
  return in_halves(
      [sum, stream, blocks, weights = input.topk_weights, output] {
        launch_sum_returned(sum, stream);
        output->event = stream.record();
      },
      [output] { return *output; });
}

}  // namespace

std::unique_ptr<LowLatency::State> make_cuda_nodes_low_latency(Group& group,
                                                               ExpertPlacement placement,
                                                               const LowLatencyOptions& options) {
  return std::make_unique<CudaNodesLowLatency>(group, std::move(placement), options);
}

}  // namespace moebius
