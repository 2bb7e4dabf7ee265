// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cuda/high_throughput_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/device/last_work.h"
#include "comm/group/cuda/cuda_group.h"
#include "comm/group/given_up.h"
#include "comm/routing/cuda/routing_tables.h"
#include "comm/routing/payloads.h"
#include "core/backoff.h"
#include "core/cuda/runtime.h"
#include "core/same_device.h"
#include "moebius/deadline.h"

namespace moebius::comm {

const CudaNodesHandle& own_nodes_handle(const DispatchHandle& handle) {
  const auto* own = dynamic_cast<const CudaNodesHandle*>(&handle);
  expect(own != nullptr,
         "the handle does not come from a high-throughput dispatch on CUDA over several nodes");
  return *own;
}

// A dispatch under way.
struct CudaNodesHighThroughput::Dispatch {
  std::vector<Tensor> payloads;
  Tensor ids = {};            // undefined along a known route, and where a layout stands for them
  Tensor weights = {};        // optional
  DispatchLayout given = {};  // the caller's, or undefined
  int expert_alignment = 1;
  bool lists_counts = false;
  RowLayout layout;
  Stream stream;
  std::shared_ptr<CudaNodesHandle> made = {};  // null along a known route
  const CudaNodesHandle* handle = nullptr;
  BankChoice banks = {};
  std::vector<int64_t> expert_counts = {};  // without ids they come with the notices
  std::vector<Tensor> outgoing = {};        // messages to other nodes, in order
  std::vector<Tensor> incoming = {};        // one per relay
};

Tensor upload_node_of_rank(const Topology& topology, Device device) {
  std::vector<int32_t> nodes;
  for (int r = 0; r < topology.size; ++r) {
    nodes.push_back(topology.node_of(r));
  }
  return upload(nodes, device);
}

Tensor CudaNodesHandle::rank_prefix() const {
  return upload(counts.rank_prefix(), to_ranks.device()).view({counts.num_ranks, counts.num_ranks});
}

Tensor CudaNodesHandle::source_rank() const {
  std::vector<int32_t> ranks;
  for (int s = 0; s < counts.num_ranks; ++s) {
    ranks.insert(ranks.end(), static_cast<size_t>(counts.sent(s, rank)), s);
  }
  return upload(ranks, to_ranks.device());
}

CudaNodesHighThroughput::CudaNodesHighThroughput(Group& g, ExpertPlacement p)
    : CudaHighThroughputBase(g, std::move(p)),
      node_of_rank_(upload_node_of_rank(topology(), device_)),
      messages_(Stream::cuda(device_.index)) {
  load_routing_kernels(device_.index);
  load_node_kernels(device_.index);
  group.barrier("high throughput on CUDA, several nodes");
}

CudaNodesHighThroughput::~CudaNodesHighThroughput() {
  await_last_work(messages_);
  if (last_stream_) {
    await_last_work(*last_stream_);
  }
}

// Waits for the GPU for half of the timeout, and then for the other hosts, which finds out a
// missing rank: work that needs a rank which has died never ends.
void CudaNodesHighThroughput::meet(const Stream& stream, std::string_view op) {
  const Event event = stream.record();
  const Deadline deadline = Deadline::after(group.timeout() / 2);
  Backoff backoff(1, 1);
  while (!event.is_complete() && !deadline.expired()) {
    backoff.pause();
  }
  enum : int64_t { kDone, kUnderWay, kGivenUp };
  // Work that was given up ends, too, but not before the group says so; hence the order.
  const auto state = [&] {
    const bool is_complete = event.is_complete();
    return group.has_given_up() ? kGivenUp : is_complete ? kDone : kUnderWay;
  };
  int64_t worst = all_reduce_max(group, op, state());
  if (worst == kUnderWay) {
    group.wait_until(
        op, rank(), [&] { return event.is_complete(); },
        [&] { return fmt::format("expected {} to be done", to_string(device_)); });
    worst = all_reduce_max(group, op, state());
  }
  if (worst == kGivenUp) {
    throw_given_up(group, op);
  }
}

std::shared_ptr<CudaNodesHighThroughput::Unfinished> CudaNodesHighThroughput::leave_unfinished(
    const Stream& stream, std::string_view op) {
  return unfinished_ = std::make_shared<Unfinished>(Unfinished{stream, op});
}

void CudaNodesHighThroughput::finish(const std::shared_ptr<Unfinished>& call) {
  if (call->is_done) {
    return;
  }
  expect(call == unfinished_,
         [&] { return fmt::format("this {} has failed in a later call", call->op); });
  unfinished_.reset();
  meet(call->stream, call->op);
  call->is_done = true;
}

void CudaNodesHighThroughput::finish_last() {
  if (unfinished_) {
    finish(std::shared_ptr(unfinished_));
  }
}

void CudaNodesHighThroughput::order_after_last(const Stream& stream) {
  if (last_stream_ && last_stream_->native_handle() != stream.native_handle()) {
    stream.wait(last_stream_->record());
  }
  last_stream_ = stream;
}

void CudaNodesHighThroughput::find_routes(Dispatch& call, Notice& notice) {
  CudaNodesHandle& handle = *call.made;
  const int num_ranks = topology().size;
  const int num_nodes = topology().num_nodes();
  const int64_t num_tokens = handle.tokens;
  const bool is_given = call.given.is_token_in_rank.defined();
  handle.to_ranks = arena_.take({num_tokens, num_ranks}, DType::kI32);
  handle.to_nodes = arena_.take({num_tokens, num_nodes}, DType::kI32);
  struct Found {
    CheckedIds ids;
    int32_t copies[2 * kMaxCudaRanks];  // to ranks, then to nodes
  };
  const Tensor found_there = arena_.take(sizeof(Found));
  auto* there = reinterpret_cast<Found*>(found_there.raw());
  RouteArgs route{.ids = is_given ? Ids() : Ids::of(call.ids),
                  .is_in = static_cast<const bool*>(call.given.is_token_in_rank.raw()),
                  .num_ranks = num_ranks,
                  .num_tokens = num_tokens,
                  .topk = static_cast<int>(handle.topk),
                  .num_experts = num_experts_,
                  .destination_of = rank_of_.data<int32_t>(),
                  .num_destinations = num_ranks,
                  .index = handle.to_ranks.data<int32_t>(),
                  .copies = there->copies};
  if (!is_given) {
    launch_check_ids(route.ids, call.ids.numel(), num_experts_, &there->ids, call.stream);
  }
  launch_route(route, call.stream);
  route.destination_of = node_of_.data<int32_t>();
  route.destination_of_rank = node_of_rank_.data<int32_t>();
  route.num_destinations = num_nodes;
  route.index = handle.to_nodes.data<int32_t>();
  route.copies = there->copies + num_ranks;
  launch_route(route, call.stream);
  Found found{};
  cuda::copy(&found, there, sizeof(Found), call.stream.native_handle(), device_.index);
  std::vector<int32_t> of_expert(static_cast<size_t>(is_given ? num_experts_ : 0));
  if (is_given) {
    cuda::copy(of_expert.data(), call.given.tokens_per_expert.raw(),
               call.given.tokens_per_expert.nbytes(), call.stream.native_handle(), device_.index);
  }
  call.stream.synchronize();
  if (is_given) {
    found.ids.selections = std::accumulate(of_expert.begin(), of_expert.end(), uint64_t{0});
    if (!call.ids) {
      notice.selections.assign(of_expert.begin(), of_expert.end());
    }
  } else if (found.ids.bad_id != kNoBadId) {
    throw_bad_id(static_cast<int64_t>(found.ids.bad_id >> 32), handle.topk,
                 static_cast<int32_t>(found.ids.bad_id), num_experts_);
  }
  notice.copies.assign(found.copies, found.copies + num_ranks);
  notice.node_copies.assign(found.copies + num_ranks, found.copies + num_ranks + num_nodes);
  sent_.selections += static_cast<int64_t>(found.ids.selections);
  for (const int64_t copies : notice.copies) {
    sent_.copies += copies;
  }
  for (int n = 0; n < num_nodes; ++n) {
    sent_.node_copies += n == topology().node() ? 0 : notice.node_copies[static_cast<size_t>(n)];
  }
}

// Exchanges the notices and sends the rows.
void CudaNodesHighThroughput::start(Dispatch& call, std::string_view op, Notice notice) {
  notice.row_bytes = call.layout.row_bytes();
  notice.bank = banks_.pick();
  notice.bank_bytes = banks_.bytes(notice.bank);
  const std::vector<Notice> notices = exchange_notices(group, op, notice);
  if (call.made) {
    call.made->counts = make_counts(notices, topology().num_nodes());
    if (!call.ids) {
      call.expert_counts = count_selections(notices, placement, rank(), call.expert_alignment);
    }
  }
  call.banks = choose_banks(group, banks_, notices, bank_bytes(call.layout, call.handle->counts));
  send_messages(call);
  CopyRowsArgs rows = own_rows(call);
  rows.copies = {call.handle->to_ranks.data<int32_t>() + first_rank(), topology().size,
                 call.handle->tokens, node_size()};
  store(call, rows, rank());
  call.stream.wait(messages_.record());
  pass_on(call);
}

CopyRowsArgs CudaNodesHighThroughput::own_rows(const Dispatch& call) const {
  CopyRowsArgs rows{};
  rows.num_payloads = call.layout.num_payloads();
  rows.num_fields = call.layout.num_fields();
  for (int f = 0; f < rows.num_fields; ++f) {
    rows.field_bytes[f] = call.layout.field_bytes(f);
  }
  for (int f = 0; f < rows.num_payloads; ++f) {
    rows.source[f] = call.payloads[static_cast<size_t>(f)].bytes();
  }
  if (call.made) {
    rows.topk = static_cast<int>(call.handle->topk);
    rows.ids = Ids::of(call.ids);
    rows.is_in = static_cast<const bool*>(call.given.is_token_in_rank.raw());
    rows.num_ranks = topology().size;
    rows.weights = call.weights ? call.weights.data<float>() : nullptr;
  }
  return rows;
}

// Sends one message to every other node, with the tokens that have a copy there, and receives one
// from every source whose gateway on this node is this rank.
void CudaNodesHighThroughput::send_messages(Dispatch& call) {
  const CountMatrix& counts = call.handle->counts;
  const int num_nodes = topology().num_nodes();
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  CopyRowsArgs rows = own_rows(call);
  for (int n = 0; n < num_nodes; ++n) {
    const int64_t num_rows = counts.sent_to_node(rank(), n);
    rows.block_rows[n] = num_rows;
    if (n == topology().node()) {
      continue;
    }
    const Tensor& block =
        call.outgoing.emplace_back(arena_.take(call.layout.block_bytes(num_rows)));
    rows.block[n] = block.bytes();
    sends.push_back({gateway(topology(), rank(), n), block.raw(), block.nbytes()});
  }
  // The destinations before this node come first, then those after it.
  const int own = topology().node();
  for (const auto& [begin, end] : {std::pair{0, own}, std::pair{own + 1, num_nodes}}) {
    CopyRowsArgs part = rows;
    part.copies = {call.handle->to_nodes.data<int32_t>() + begin, num_nodes, call.handle->tokens,
                   end - begin};
    std::copy(rows.block + begin, rows.block + end, part.block);
    std::copy(rows.block_rows + begin, rows.block_rows + end, part.block_rows);
    launch_copy_rows(part, blocks_of(configs.dispatch), call.stream);
  }
  for (int source = 0; source < topology().size; ++source) {
    if (topology().same_node(source) || gateway(topology(), source, topology().node()) != rank()) {
      continue;
    }
    const int64_t num_rows = counts.sent_to_node(source, topology().node());
    const Tensor& block =
        call.incoming.emplace_back(arena_.take(call.layout.block_bytes(num_rows)));
    recvs.push_back({source, block.raw(), block.nbytes()});
    if (call.made) {
      call.made->relays.push_back({source, num_rows, {}});
    }
  }
  messages_.wait(call.stream.record());
  group.exchange_on(messages_, "dispatch between nodes", sends, recvs);
}

// Passes what has come from other nodes on to the ranks of this one.
void CudaNodesHighThroughput::pass_on(Dispatch& call) {
  const RowLayout& layout = call.layout;
  for (size_t i = 0; i < call.incoming.size(); ++i) {
    const int64_t num_rows = call.handle->relays[i].tokens;
    const auto at = [&](int f) { return call.incoming[i].bytes() + layout.offset(f, num_rows); };
    CopyRowsArgs rows = own_rows(call);
    for (int f = 0; f < layout.num_payloads(); ++f) {
      rows.source[f] = at(f);
    }
    if (call.made) {
      if (call.ids) {
        rows.ids.words = reinterpret_cast<const int32_t*>(at(layout.ids_field()));
      } else {
        rows.is_in = reinterpret_cast<const bool*>(at(layout.ids_field()));
      }
      rows.tokens = reinterpret_cast<const int32_t*>(at(layout.token_field()));
      rows.weights = layout.has_weights()
                         ? reinterpret_cast<const float*>(at(layout.weights_field()))
                         : nullptr;
      CudaNodesHandle::Relay& relay = call.made->relays[i];
      relay.to_ranks = arena_.take({num_rows, node_size()}, DType::kI32);
      launch_route({.ids = rows.ids,
                    .is_in = rows.is_in,
                    .num_ranks = topology().size,
                    .num_tokens = num_rows,
                    .topk = rows.topk,
                    .num_experts = num_experts_,
                    .destination_of = rank_of_.data<int32_t>(),
                    .first = first_rank(),
                    .num_destinations = node_size(),
                    .index = relay.to_ranks.data<int32_t>()},
                   call.stream);
    }
    const CudaNodesHandle::Relay& relay = call.handle->relays[i];
    rows.copies = {relay.to_ranks.data<int32_t>(), node_size(), num_rows, node_size()};
    store(call, rows, relay.source);
  }
}

// Stores every row at its place in the banks of this node's ranks.
void CudaNodesHighThroughput::store(Dispatch& call, const CopyRowsArgs& from, int source) {
  const CountMatrix& counts = call.handle->counts;
  CopyRowsArgs rows = from;
  rows.rank_of = rank_of_.data<int32_t>();
  rows.local_of = local_of_.data<int32_t>();
  rows.num_experts = static_cast<int>(num_experts_);
  rows.first_rank = first_rank();
  for (int i = 0; i < node_size(); ++i) {
    const int to = first_rank() + i;
    const int64_t copies = counts.sent(source, to);
    if (copies > 0) {
      rows.block[i] = banks_.window(call.banks.bank_of[static_cast<size_t>(to)]).peer(to);
      rows.block_rows[i] = counts.rows(to);
      rows.first_row[i] = counts.row_begin(source, to);
      group.count_traffic(to, copies * call.layout.row_bytes());
    }
  }
  launch_copy_rows(rows, blocks_of(configs.dispatch), call.stream);
}

Tensor CudaNodesHighThroughput::field(const Dispatch& call,
                                      int index,
                                      DType dtype,
                                      const Shape& shape) const {
  const int64_t rows = call.handle->num_rows();
  if (rows == 0) {
    return Tensor::borrow(nullptr, shape, dtype, device_);
  }
  const Window& bank = banks_.window(call.banks.bank_of[static_cast<size_t>(rank())]);
  return Tensor::share(call.banks.lease, bank.local() + call.layout.offset(index, rows), shape,
                       dtype, device_);
}

std::vector<Tensor> CudaNodesHighThroughput::payload_fields(const Dispatch& call) const {
  std::vector<Tensor> fields;
  for (int f = 0; f < call.layout.num_payloads(); ++f) {
    const Tensor& payload = call.payloads[static_cast<size_t>(f)];
    fields.push_back(field(call, f, payload.dtype(), with_rows(payload, call.handle->num_rows())));
  }
  return fields;
}

Pending<DispatchOutput> CudaNodesHighThroughput::dispatch_async(const DispatchInput& input,
                                                                const Stream& stream) {
  finish_last();
  expect_good_layouts();
  expect_dispatch(input, stream);
  if (input.capacity > 0) {
    throw Unsupported(
        "a dispatch on CUDA over several nodes with a capacity: hosts exchange the counts");
  }
  const int64_t num_tokens = num_tokens_of(input);
  const auto call = std::make_shared<Dispatch>(
      Dispatch{.payloads = input.payloads,
               .ids = input.topk_ids,
               .weights = input.topk_weights,
               .given = input.layout,
               .expert_alignment = static_cast<int>(input.expert_alignment),
               .lists_counts = input.lists_counts,
               .layout = RowLayout(payload_row_bytes(input.payloads, num_tokens, device_),
                                   routing_of(input, topology())),
               .stream = stream,
               .made = std::make_shared<CudaNodesHandle>()});
  expect_le(call->layout.num_fields(), kMaxFields, "payloads of a dispatch on CUDA, and 3");
  call->handle = call->made.get();
  call->made->rank = rank();
  call->made->tokens = num_tokens;
  call->made->topk = topk_of(input);
  order_after_last(stream);
  stream.wait(input.previous);
  Notice notice;
  find_routes(*call, notice);
  start(*call, "dispatch counts", std::move(notice));
  const auto output = std::make_shared<std::optional<DispatchOutput>>();
  const auto hook = [this, call, output, last = leave_unfinished(stream, "dispatch")] {
    if (!*output) {
      finish(last);
      *output = receive(*call);
    }
  };
  return {hook, [hook, output] {
            hook();
            return std::move(**output);
          }};
}

DispatchOutput CudaNodesHighThroughput::receive(Dispatch& call) {
  CudaNodesHandle& handle = *call.made;
  const RowLayout& layout = call.layout;
  const int64_t rows = handle.num_rows();
  const Shape slots = {rows, handle.topk};
  DispatchOutput output;
  output.payloads = payload_fields(call);
  if (call.ids) {
    output.topk_ids = field(call, layout.ids_field(), call.ids.dtype(), slots);
  }
  if (layout.has_weights()) {
    output.topk_weights = field(call, layout.weights_field(), DType::kF32, slots);
  }
  handle.source_tokens = field(call, layout.token_field(), DType::kI32, {rows});
  output.expert_num_tokens = arena_.take({num_local_}, DType::kI32);
  list_experts(call, output);
  output.handle = call.made;
  output.event = call.stream.record();
  // Only the output keeps the bank, however long the Pending lives.
  call.banks.lease.reset();
  call.payloads.clear();
  return output;
}

// Counts the rows of each expert, on the device and, where that is asked for, on the host.
void CudaNodesHighThroughput::list_experts(Dispatch& call, DispatchOutput& output) const {
  const Tensor& counts = output.expert_num_tokens;
  std::vector<int32_t> listed(call.expert_counts.begin(), call.expert_counts.end());
  if (call.ids) {
    launch_expert_counts(Ids::of(output.topk_ids), output.topk_ids.numel(), num_local_,
                         call.expert_alignment, counts.data<int32_t>(), call.stream);
    listed.resize(static_cast<size_t>(call.lists_counts ? num_local_ : 0));
    cuda::copy(listed.data(), counts.raw(), static_cast<int64_t>(listed.size() * sizeof(int32_t)),
               call.stream.native_handle(), device_.index);
  } else {
    cuda::copy(counts.raw(), listed.data(), counts.nbytes(), call.stream.native_handle(),
               device_.index);
  }
  if (!listed.empty()) {
    call.stream.synchronize();
    output.expert_counts.assign(listed.begin(), listed.end());
  }
}

Pending<DispatchOutput> CudaNodesHighThroughput::dispatch_cached_async(
    const CachedDispatchInput& input, const DispatchHandle& handle_, const Stream& stream) {
  finish_last();
  const CudaNodesHandle& handle = own_nodes_handle(handle_);
  expect_stream(stream, device_);
  const auto started = std::make_shared<Dispatch>(
      Dispatch{.payloads = input.payloads,
               .layout = RowLayout(payload_row_bytes(input.payloads, handle.tokens, device_)),
               .stream = stream,
               .handle = &handle});
  Dispatch& call = *started;
  expect_le(call.layout.num_fields(), kMaxFields, "payloads of a dispatch on CUDA");
  order_after_last(stream);
  stream.wait(input.previous);
  stream.synchronize();  // the kernels that have read the bank picked below are done
  start(call, "cached dispatch", {});
  return in_halves([this, started, last = leave_unfinished(stream, "dispatch")] { finish(last); },
                   [this, started] {
                     DispatchOutput output;
                     output.payloads = payload_fields(*started);
                     output.event = started->stream.record();
                     started->banks.lease.reset();
                     started->payloads.clear();
                     return output;
                   });
}

}  // namespace moebius::comm
