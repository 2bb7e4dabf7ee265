// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cpu/combine_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/group/stream_copy.h"
#include "comm/high_throughput/transport.h"
#include "core/parallel.h"
#include "core/same_device.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "combine";
constexpr int64_t kTokensPerTask = 8;

RowLayout make_layout(const CombineInput& input, const HighThroughputHandle& handle) {
  const Tensor& x = input.x;
  expect_defined(x, "x");
  expect(is_float(x.dtype()),
         [&] { return fmt::format("x dtype is {}, expected f32, f16 or bf16", name(x.dtype())); });
  expect_eq(x.num_dims(), 2, "dimensions of x");
  expect_eq(x.dim(0), handle.num_rows(), "rows of x");
  expect_on(x, Device::cpu(), "x");
  std::vector<int64_t> fields = {row_bytes(x.dtype(), x.dim(1))};
  if (input.topk_weights) {
    const int64_t topk =
        expect_combine_weights(input, handle.num_rows(), handle.topk, Device::cpu());
    fields.push_back(topk * static_cast<int64_t>(sizeof(float)));
  }
  for (const Tensor& bias : input.bias) {
    expect_operand(bias, {handle.num_tokens(), x.dim(1)}, x.dtype(), Device::cpu(), "bias");
  }
  return RowLayout(std::move(fields));
}

}  // namespace

CombineTransfer::CombineTransfer(CpuHighThroughput& state,
                                 const CombineInput& input,
                                 const HighThroughputHandle& handle,
                                 const Stream& stream,
                                 const Tensor& out_x)
    : state_(state),
      handle_(handle),
      stream_(stream),
      input_(input),
      out_(out_x),
      layout_(make_layout(input, handle)) {
  hidden_ = input_.x.dim(1);
  topk_ = input_.topk_weights ? input_.topk_weights.dim(1) : 0;
  const Shape shape = {handle_.num_tokens(), hidden_};
  expect_combine_output(out_, input_.first_column, shape, input_.x.dtype());
  if (out_) {
    expect_on(out_, Device::cpu(), "out_x");
  } else {
    out_ = state_.arena.take(shape, input_.x.dtype());
  }
  count_traffic();
  show_rows();
  if (state_.topology().num_nodes() > 1) {
    await_rows();
    post_messages();
  }
}

// Counts what others will read from this rank.  The reader is the token's rank, or its gateway on
// this node.
void CombineTransfer::count_traffic() {
  const Topology& topology = state_.topology();
  for (int source = 0; source < topology.size; ++source) {
    const int reader =
        topology.same_node(source) ? source : gateway(topology, source, topology.node());
    state_.group.count_traffic(reader,
                               handle_.counts.sent(source, state_.rank()) * layout_.row_bytes());
  }
}

// Makes every rank's rows readable by the ranks of its node.  Ranks that share an address space
// exchange tensors, and do so with all ranks, so that all find out together whose rows are of
// another kind.  Other ranks copy their rows into a bank first.
void CombineTransfer::show_rows() {
  const Topology& topology = state_.topology();
  sources_.resize(static_cast<size_t>(topology.size));
  if (state_.group.shares_address_space()) {
    mine_ = {input_.x, input_.topk_weights};
    std::vector<SendBlock> sends;
    std::vector<RecvBlock> recvs;
    for (int r = 0; r < topology.size; ++r) {
      sends.push_back({r, &mine_, sizeof(mine_)});
      recvs.push_back({r, nullptr, sizeof(mine_)});
    }
    exchange_ = state_.group.start_exchange(
        kOp, sends, recvs, [this](std::span<const std::byte* const> blocks) { look_at(blocks); });
    return;
  }
  Notice mine{layout_.row_bytes(), state_.combine_banks.pick(), 0, {}, {}};
  mine.bank_bytes = state_.combine_banks.bytes(mine.bank);
  const std::vector<Notice> notices = exchange_notices(state_.group, "combine banks", mine);
  std::vector<int64_t> needed;
  for (int r = 0; r < topology.size; ++r) {
    needed.push_back(layout_.block_bytes(handle_.counts.rows(r)));
  }
  banks_ = choose_banks(state_.group, state_.combine_banks, notices, needed);
  for (int i = 0; i < state_.node_size(); ++i) {
    const int rank = state_.first_rank() + i;
    const int64_t rows = handle_.counts.rows(rank);
    if (rows == 0) {
      continue;
    }
    const int64_t bank = banks_.bank_of[static_cast<size_t>(rank)];
    std::byte* block = state_.combine_banks.window(bank).peer(rank);
    sources_[static_cast<size_t>(rank)] = {
        block, input_.topk_weights ? reinterpret_cast<const float*>(block + layout_.offset(1, rows))
                                   : nullptr};
    if (rank != state_.rank()) {
      continue;
    }
    const int64_t bytes = layout_.field_bytes(0);
    parallel_for(stream_, rows, kTokensPerTask, [&](int64_t begin, int64_t end) {
      std::memcpy(block + begin * bytes, input_.x.bytes() + begin * bytes,
                  static_cast<size_t>((end - begin) * bytes));
    });
    if (input_.topk_weights) {
      std::memcpy(block + layout_.offset(1, rows), input_.topk_weights.raw(),
                  static_cast<size_t>(rows * layout_.field_bytes(1)));
    }
  }
  exchange_ = state_.group.start_exchange(kOp, {}, {});
}

// blocks[r] is the Shown of rank r.
void CombineTransfer::look_at(std::span<const std::byte* const> blocks) {
  const Topology& topology = state_.topology();
  const Shown& first = *reinterpret_cast<const Shown*>(blocks[0]);
  for (int r = 0; r < topology.size; ++r) {
    const auto rank = static_cast<size_t>(r);
    const Shown& theirs = *reinterpret_cast<const Shown*>(blocks[rank]);
    if (mismatch_.empty() && !theirs.has_rows_like(first)) {
      mismatch_ = fmt::format("{}: rank {} brings {}, rank 0 {}", kOp, r, theirs.describe(),
                              first.describe());
    }
    if (topology.same_node(r)) {
      shown_.push_back(theirs);
      sources_[rank] = {theirs.x.bytes(), theirs.weights ? theirs.weights.data<float>() : nullptr};
    }
  }
}

bool CombineTransfer::Shown::has_rows_like(const Shown& other) const {
  return x.dtype() == other.x.dtype() && x.dim(1) == other.x.dim(1) && topk() == other.topk();
}

std::string CombineTransfer::Shown::describe() const {
  return fmt::format("rows of {} {} with {} weights", x.dim(1), name(x.dtype()), topk());
}

void CombineTransfer::await_rows() {
  exchange_->wait();
  if (!mismatch_.empty()) {
    throw InvalidArgument(mismatch_);
  }
}

void CombineTransfer::find_copies(const Route& route,
                                  int source,
                                  int64_t token,
                                  Copies& copies) const {
  copies.rows.clear();
  copies.weights.clear();
  route.for_each_copy(token, [&](int rank, int32_t place) {
    const Source& from = sources_[static_cast<size_t>(rank)];
    const int64_t row = handle_.counts.row_begin(source, rank) + place;
    copies.rows.push_back({from.x + row * layout_.field_bytes(0), 1.0f});
    if (from.weights != nullptr) {
      copies.weights.push_back(from.weights + row * topk_);
    }
  });
}

void CombineTransfer::sum_copies(const Copies& copies, std::byte* out, bool past_caches) const {
  sum_rows({.dtype = input_.x.dtype(),
            .rounding = SumRounding::kSum,
            .terms = copies.rows.data(),
            .num_terms = static_cast<int64_t>(copies.rows.size()),
            .n = hidden_,
            .out = out,
            .past_caches = past_caches});
}

void CombineTransfer::sum_weights(const Copies& copies, float* out) const {
  std::fill_n(out, topk_, 0.0f);
  for (const float* weights : copies.weights) {
    for (int64_t k = 0; k < topk_; ++k) {
      out[k] += weights[k];
    }
  }
}

void CombineTransfer::post_messages() {
  const Topology& topology = state_.topology();
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (const Relay& relay : handle_.relays) {
    const int64_t rows = relay.route.num_tokens;
    auto& block = outgoing_.emplace_back(static_cast<size_t>(layout_.block_bytes(rows)));
    parallel_for(stream_, rows, kTokensPerTask, [&](int64_t begin, int64_t end) {
      Copies copies;
      for (int64_t t = begin; t < end; ++t) {
        find_copies(relay.route, relay.source, t, copies);
        sum_copies(copies, block.data() + t * layout_.field_bytes(0), false);
        if (input_.topk_weights) {
          auto* weights = reinterpret_cast<float*>(block.data() + layout_.offset(1, rows));
          sum_weights(copies, weights + t * topk_);
        }
      }
    });
    sends.push_back({relay.source, block.data(), static_cast<int64_t>(block.size())});
  }
  incoming_.resize(static_cast<size_t>(topology.num_nodes()));
  for (int n = 0; n < topology.num_nodes(); ++n) {
    if (n == topology.node()) {
      continue;
    }
    auto& block = incoming_[static_cast<size_t>(n)];
    block.resize(
        static_cast<size_t>(layout_.block_bytes(handle_.to_nodes.copies[static_cast<size_t>(n)])));
    recvs.push_back(
        {gateway(topology, state_.rank(), n), block.data(), static_cast<int64_t>(block.size())});
  }
  exchange_ = state_.group.start_exchange("combine between nodes", sends, recvs);
}

void CombineTransfer::finish() {
  await_rows();
}

CombineOutput CombineTransfer::receive() {
  const Topology& topology = state_.topology();
  const int64_t num_tokens = handle_.num_tokens();
  CombineOutput output;
  output.x = out_;
  if (input_.topk_weights) {
    output.topk_weights = input_.topk_weights_into
                              ? input_.topk_weights_into
                              : state_.arena.take({num_tokens, topk_}, DType::kF32);
  }
  const bool many_nodes = topology.num_nodes() > 1;
  const int64_t row_size = layout_.field_bytes(0);
  const bool past_caches = out_.nbytes() >= kStreamBytes;
  const int64_t out_step = row_bytes(out_.dtype(), out_.dim(1));
  std::byte* out = out_.bytes() + row_bytes(out_.dtype(), input_.first_column);
  parallel_for(stream_, num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
    Copies own;
    Copies total;
    std::vector<std::byte> node_sum(static_cast<size_t>(many_nodes ? row_size : 0));
    std::vector<float> node_weights(static_cast<size_t>(topk_));
    for (int64_t t = begin; t < end; ++t) {
      total.rows.clear();
      total.weights.clear();
      for (int n = 0; n < topology.num_nodes(); ++n) {
        const int64_t row = handle_.to_nodes.at(t, n);
        if (row < 0) {
          continue;
        }
        if (n != topology.node()) {
          const auto& block = incoming_[static_cast<size_t>(n)];
          const int64_t rows = handle_.to_nodes.copies[static_cast<size_t>(n)];
          total.rows.push_back({block.data() + row * row_size, 1.0f});
          if (input_.topk_weights) {
            total.weights.push_back(
                reinterpret_cast<const float*>(block.data() + layout_.offset(1, rows)) +
                row * topk_);
          }
          continue;
        }
        find_copies(handle_.to_ranks, state_.rank(), t, many_nodes ? own : total);
        if (many_nodes) {  // it is rounded before it is added, as the sums of other nodes were
          sum_copies(own, node_sum.data(), false);
          total.rows.push_back({node_sum.data(), 1.0f});
          if (input_.topk_weights) {
            sum_weights(own, node_weights.data());
            total.weights.push_back(node_weights.data());
          }
        }
      }
      for (const Tensor& bias : input_.bias) {
        if (bias) {
          total.rows.push_back({bias.bytes() + t * row_size, 1.0f});
        }
      }
      sum_copies(total, out + t * out_step, past_caches);
      if (output.topk_weights) {
        sum_weights(total, output.topk_weights.data<float>() + t * topk_);
      }
    }
    if (past_caches) {
      stream_fence();
    }
  });
  // Owners may change their rows only after everybody has read them.
  state_.group.barrier("combine done");
  output.event = stream_.record();
  return output;
}

}  // namespace moebius
