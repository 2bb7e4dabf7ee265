// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cpu/dispatch_transfer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/group/stream_copy.h"
#include "comm/routing/payloads.h"
#include "core/parallel.h"
#include "core/same_device.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "dispatch";
constexpr int64_t kTokensPerTask = 16;
constexpr int64_t kMinStreamedRow = 1024;  // shorter rows are mostly parts of cache lines

RowLayout make_layout(const DispatchInput& input, const CpuHighThroughput& state) {
  expect_routing(input, state.placement, state.group);
  if (input.topk_ids) {
    expect_ids(input.topk_ids, state.placement.num_experts());
  }
  return {payload_row_bytes(input.payloads, num_tokens_of(input)),
          routing_of(input, state.topology())};
}

}  // namespace

DispatchTransfer::DispatchTransfer(CpuHighThroughput& state,
                                   const DispatchInput& input,
                                   const Stream& stream)
    : state_(state),
      stream_(stream),
      payloads_(input.payloads),
      ids_(input.topk_ids),
      weights_(input.topk_weights),
      routing_(input.layout),
      expert_alignment_(input.expert_alignment),
      layout_(make_layout(input, state)),
      made_(std::make_shared<HighThroughputHandle>()) {
  const Topology& topology = state_.topology();
  const int64_t num_tokens = num_tokens_of(input);
  HighThroughputHandle& handle = *made_;
  handle_ = &handle;
  handle.rank = state_.rank();
  handle.topk = topk_of(input);
  handle.has_weights = weights_.defined();
  Rows own = own_rows();
  own.ids = has_layout(input) ? Ids() : own.ids;
  const std::span<const int> all_ranks = state_.rank_ids;
  const Route to_all = find_route(own, num_tokens, state_.rank_of, all_ranks, 0);
  handle.to_ranks =
      topology.num_nodes() == 1
          ? to_all
          : find_route(own, num_tokens, state_.rank_of, state_.node_ranks(), state_.first_rank());
  std::vector<int> node_begin = topology.node_begin;
  node_begin.resize(static_cast<size_t>(topology.num_nodes()) + 1, topology.size);
  handle.to_nodes = find_route(own, num_tokens, state_.node_of, node_begin, 0);

  Notice mine{layout_.row_bytes(), state_.receive_banks.pick(), 0, to_all.copies,
              handle.to_nodes.copies};
  mine.bank_bytes = state_.receive_banks.bytes(mine.bank);
  int64_t selections = to_all.selections;
  if (has_layout(input)) {
    const auto* of_expert = routing_.tokens_per_expert.data<int32_t>();
    selections =
        std::accumulate(of_expert, of_expert + routing_.tokens_per_expert.numel(), int64_t{0});
    if (!ids_) {
      mine.selections.assign(of_expert, of_expert + routing_.tokens_per_expert.numel());
    }
  }
  const std::vector<Notice> notices = exchange_notices(state_.group, "dispatch counts", mine);
  if (!ids_) {
    expert_counts_ = count_selections(notices, state_.placement, handle.rank, expert_alignment_);
  }
  handle.counts = make_counts(notices, topology.num_nodes());
  banks_ =
      choose_banks(state_.group, state_.receive_banks, notices, bank_bytes(layout_, handle.counts));

  TransportStatistics& statistics = state_.sent;
  statistics.selections += selections;
  for (const int64_t copies : to_all.copies) {
    statistics.copies += copies;
  }
  for (int n = 0; n < topology.num_nodes(); ++n) {
    statistics.node_copies +=
        n == topology.node() ? 0 : handle.to_nodes.copies[static_cast<size_t>(n)];
  }
  send();
}

DispatchTransfer::DispatchTransfer(CpuHighThroughput& state,
                                   std::span<const Tensor> payloads,
                                   const HighThroughputHandle& handle,
                                   const Stream& stream)
    : state_(state),
      stream_(stream),
      payloads_(payloads.begin(), payloads.end()),
      layout_(payload_row_bytes(payloads, handle.num_tokens())),
      handle_(&handle) {
  Notice mine{layout_.row_bytes(), state_.receive_banks.pick(), 0, {}, {}};
  mine.bank_bytes = state_.receive_banks.bytes(mine.bank);
  const std::vector<Notice> notices = exchange_notices(state_.group, "cached dispatch", mine);
  banks_ =
      choose_banks(state_.group, state_.receive_banks, notices, bank_bytes(layout_, handle.counts));
  send();
}

Route DispatchTransfer::find_route(const Rows& rows,
                                   int64_t num_tokens,
                                   std::span<const int> destination_of,
                                   std::span<const int> rank_begin,
                                   int first) const {
  return rows.ids ? make_route(rows.ids, num_tokens, handle_->topk, destination_of, first,
                               static_cast<int>(rank_begin.size()) - 1)
                  : make_route(rows.is_in, num_tokens, state_.group.size(), rank_begin, first);
}

// When it returns, the rows for this node stand in their banks.  It tells their destinations so
// without waiting for them.
void DispatchTransfer::send() {
  post_messages();
  store(own_rows(), handle_->to_ranks, state_.rank());
  if (!exchange_) {
    exchange_ = state_.group.start_exchange(kOp, {}, {});
  }
}

DispatchTransfer::Rows DispatchTransfer::own_rows() const {
  Rows rows;
  for (const Tensor& payload : payloads_) {
    rows.payloads.push_back(payload.bytes());
  }
  rows.ids = Ids::of(ids_);
  rows.is_in = static_cast<const bool*>(routing_.is_token_in_rank.raw());
  rows.weights = weights_ ? weights_.data<float>() : nullptr;
  return rows;
}

DispatchTransfer::Rows DispatchTransfer::message_rows(const std::byte* block,
                                                      int64_t num_rows) const {
  Rows rows;
  for (int f = 0; f < layout_.num_payloads(); ++f) {
    rows.payloads.push_back(block + layout_.offset(f, num_rows));
  }
  const auto at = [&](int field) { return block + layout_.offset(field, num_rows); };
  if (layout_.has_routing()) {
    if (ids_) {
      rows.ids = {reinterpret_cast<const int32_t*>(at(layout_.ids_field())), words_per_id()};
    } else {
      rows.is_in = reinterpret_cast<const bool*>(at(layout_.ids_field()));
    }
    rows.tokens = reinterpret_cast<const int32_t*>(at(layout_.token_field()));
    if (layout_.has_weights()) {
      rows.weights = reinterpret_cast<const float*>(at(layout_.weights_field()));
    }
  }
  return rows;
}

// Posts one message to every other node, with the tokens that have a copy there.  It also begins to
// receive one from every source whose gateway on this node is this rank.
void DispatchTransfer::post_messages() {
  const Topology& topology = state_.topology();
  if (topology.num_nodes() == 1) {
    return;
  }
  const CountMatrix& counts = handle_->counts;
  const Route& route = handle_->to_nodes;
  const Rows rows = own_rows();
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  outgoing_.resize(static_cast<size_t>(topology.num_nodes()));
  for (int n = 0; n < topology.num_nodes(); ++n) {
    if (n == topology.node()) {
      continue;
    }
    const int64_t num_rows = counts.sent_to_node(state_.rank(), n);
    auto& block = outgoing_[static_cast<size_t>(n)];
    block.resize(static_cast<size_t>(layout_.block_bytes(num_rows)));
    const auto put = [&](int field, int64_t row, const void* data) {
      const int64_t bytes = layout_.field_bytes(field);
      std::memcpy(block.data() + layout_.offset(field, num_rows) + row * bytes, data,
                  static_cast<size_t>(bytes));
    };
    parallel_for(stream_, route.num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t row = route.at(t, n);
        if (row < 0) {
          continue;
        }
        for (int f = 0; f < layout_.num_payloads(); ++f) {
          put(f, row, rows.payloads[static_cast<size_t>(f)] + t * layout_.field_bytes(f));
        }
        if (layout_.has_routing()) {
          const auto token = static_cast<int32_t>(t);
          put(layout_.ids_field(), row,
              ids_ ? static_cast<const void*>(rows.ids.from(t * handle_->topk).words)
                   : rows.is_in + t * topology.size);
          put(layout_.token_field(), row, &token);
        }
        if (layout_.has_weights()) {
          put(layout_.weights_field(), row, rows.weights + t * handle_->topk);
        }
      }
    });
    sends.push_back(
        {gateway(topology, state_.rank(), n), block.data(), static_cast<int64_t>(block.size())});
  }
  for (int source = 0; source < topology.size; ++source) {
    if (topology.same_node(source) || gateway(topology, source, topology.node()) != state_.rank()) {
      continue;
    }
    const int64_t num_rows = counts.sent_to_node(source, topology.node());
    incoming_.emplace_back(static_cast<size_t>(layout_.block_bytes(num_rows)));
    recvs.push_back(
        {source, incoming_.back().data(), static_cast<int64_t>(incoming_.back().size())});
    if (made_) {
      made_->relays.push_back({source, {}});
    }
  }
  exchange_ = state_.group.start_exchange("dispatch between nodes", sends, recvs);
}

// Stores every row at its place in the banks of this node's ranks.
void DispatchTransfer::store(const Rows& rows, const Route& route, int source) {
  const CountMatrix& counts = handle_->counts;
  struct Destination {
    std::vector<std::byte*> fields;  // first row of this source in each field
  };
  std::vector<Destination> destinations;
  int64_t total_bytes = 0;
  for (int i = 0; i < route.num_destinations; ++i) {
    const int rank = route.first + i;
    Destination destination;
    const int64_t copies = counts.sent(source, rank);
    if (copies > 0) {
      const int64_t bank = banks_.bank_of[static_cast<size_t>(rank)];
      std::byte* base = state_.receive_banks.window(bank).peer(rank);
      for (int f = 0; f < layout_.num_fields(); ++f) {
        destination.fields.push_back(base + layout_.offset(f, counts.rows(rank)) +
                                     counts.row_begin(source, rank) * layout_.field_bytes(f));
      }
      state_.group.count_traffic(rank, copies * layout_.row_bytes());
      total_bytes += copies * layout_.row_bytes();
    }
    destinations.push_back(std::move(destination));
  }

  const bool past_caches = total_bytes >= kStreamBytes;
  const int64_t topk = handle_->topk;
  parallel_for(stream_, route.num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      route.for_each_copy(t, [&](int rank, int64_t row) {
        const Destination& to = destinations[static_cast<size_t>(rank - route.first)];
        const auto place = [&](int field) {
          return to.fields[static_cast<size_t>(field)] + row * layout_.field_bytes(field);
        };
        for (int f = 0; f < layout_.num_payloads(); ++f) {
          const int64_t bytes = layout_.field_bytes(f);
          const std::byte* from = rows.payloads[static_cast<size_t>(f)] + t * bytes;
          if (past_caches && bytes >= kMinStreamedRow) {
            stream_copy(place(f), from, bytes);
          } else {
            std::memcpy(place(f), from, static_cast<size_t>(bytes));
          }
        }
        if (!layout_.has_routing()) {
          return;
        }
        const IdsOut ids{reinterpret_cast<int32_t*>(place(layout_.ids_field())), words_per_id()};
        auto* weights = layout_.has_weights()
                            ? reinterpret_cast<float*>(place(layout_.weights_field()))
                            : nullptr;
        for (int64_t k = 0; k < topk; ++k) {
          const int32_t id = rows.ids[t * topk + k];
          const bool is_here = id >= 0 && state_.rank_of[static_cast<size_t>(id)] == rank;
          ids.set(k, is_here ? static_cast<int32_t>(state_.placement.local_index(id)) : -1);
          if (weights != nullptr) {
            weights[k] = is_here ? rows.weights[t * topk + k] : 0.0f;
          }
        }
        const int32_t token = rows.tokens != nullptr ? rows.tokens[t] : static_cast<int32_t>(t);
        std::memcpy(place(layout_.token_field()), &token, sizeof(token));
      });
    }
    if (past_caches) {
      stream_fence();
    }
  });
}

void DispatchTransfer::finish() {
  exchange_->wait();
  if (state_.topology().num_nodes() > 1) {
    for (size_t i = 0; i < incoming_.size(); ++i) {
      const int source = handle_->relays[i].source;
      const int64_t num_rows = handle_->counts.sent_to_node(source, state_.topology().node());
      const Rows rows = message_rows(incoming_[i].data(), num_rows);
      if (made_) {
        made_->relays[i].route =
            find_route(rows, num_rows, state_.rank_of, state_.node_ranks(), state_.first_rank());
      }
      store(rows, handle_->relays[i].route, source);
    }
    state_.group.barrier(kOp);
  }
  outgoing_.clear();
  incoming_.clear();
}

Tensor DispatchTransfer::field(int index, DType dtype, const Shape& shape) const {
  const int64_t rows = handle_->num_rows();
  if (rows == 0) {
    return Tensor::borrow(nullptr, shape, dtype);
  }
  const int64_t bank = banks_.bank_of[static_cast<size_t>(state_.rank())];
  return Tensor::share(banks_.lease,
                       state_.receive_banks.window(bank).local() + layout_.offset(index, rows),
                       shape, dtype);
}

DispatchOutput DispatchTransfer::receive() {
  const int64_t rows = handle_->num_rows();
  DispatchOutput output;
  for (int f = 0; f < layout_.num_payloads(); ++f) {
    const Tensor& payload = payloads_[static_cast<size_t>(f)];
    output.payloads.push_back(field(f, payload.dtype(), with_rows(payload, rows)));
  }
  output.event = stream_.record();
  if (!made_) {
    return output;
  }
  made_->tokens = field(layout_.token_field(), DType::kI32, {rows});
  output.handle = made_;
  if (ids_) {
    receive_ids(output);
  }
  const Tensor counts =
      state_.arena.take({static_cast<int64_t>(expert_counts_.size())}, DType::kI32);
  std::transform(expert_counts_.begin(), expert_counts_.end(), counts.data<int32_t>(),
                 [](int64_t count) { return static_cast<int32_t>(count); });
  output.expert_num_tokens = counts;
  output.expert_counts = expert_counts_;
  return output;
}

void DispatchTransfer::receive_ids(DispatchOutput& output) {
  const Shape slots = {handle_->num_rows(), handle_->topk};
  output.topk_ids = field(layout_.ids_field(), ids_.dtype(), slots);
  if (layout_.has_weights()) {
    output.topk_weights = field(layout_.weights_field(), DType::kF32, slots);
  }
  expert_counts_.assign(static_cast<size_t>(state_.placement.num_local(state_.rank())), 0);
  const Ids ids = Ids::of(output.topk_ids);
  const int64_t num_slots = slots.numel();
  for (int64_t i = 0; i < num_slots; ++i) {
    if (ids[i] >= 0) {
      ++expert_counts_[static_cast<size_t>(ids[i])];
    }
  }
  for (int64_t& count : expert_counts_) {
    count = (count + expert_alignment_ - 1) / expert_alignment_ * expert_alignment_;
  }
}

}  // namespace moebius
