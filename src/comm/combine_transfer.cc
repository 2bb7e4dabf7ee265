// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/combine_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/parallel.h"

namespace moebius {

namespace {

constexpr int64_t kTokensPerTask = 8;

template <typename T>
void add_row(const std::byte* row, int64_t n, float* acc) {
  const T* values = reinterpret_cast<const T*>(row);
  for (int64_t i = 0; i < n; ++i) {
    acc[i] += static_cast<float>(values[i]);
  }
}

void add_row(DType dtype, const std::byte* row, int64_t n, float* acc) {
  switch (dtype) {
    case DType::kF32:
      return add_row<float>(row, n, acc);
    case DType::kF16:
      return add_row<Float16>(row, n, acc);
    default:
      return add_row<BFloat16>(row, n, acc);
  }
}

template <typename T>
void store_row(const float* acc, int64_t n, std::byte* row) {
  T* values = reinterpret_cast<T*>(row);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<T>(acc[i]);
  }
}

void store_row(DType dtype, const float* acc, int64_t n, std::byte* row) {
  switch (dtype) {
    case DType::kF32:
      return store_row<float>(acc, n, row);
    case DType::kF16:
      return store_row<Float16>(acc, n, row);
    default:
      return store_row<BFloat16>(acc, n, row);
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

RowLayout make_layout(const HighThroughput::CombineInput& input,
                      const HighThroughputHandle& handle) {
  const Tensor& x = input.x;
  expect_defined(x, "x");
  expect(is_float(x.dtype()),
         fmt::format("x dtype is {}, expected f32, f16 or bf16", name(x.dtype())));
  expect_eq(x.num_dims(), 2, "dimensions of x");
  expect_eq(x.dim(0), handle.num_rows(), "rows of x");
  std::vector<int64_t> fields = {row_bytes(x.dtype(), x.dim(1))};
  if (input.topk_weights) {
    expect_shape(input.topk_weights, {handle.num_rows(), handle.topk}, "topk_weights");
    expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
    fields.push_back(handle.topk * static_cast<int64_t>(sizeof(float)));
  }
  for (const Tensor& bias : input.bias) {
    if (bias) {
      expect_shape(bias, {handle.num_tokens(), x.dim(1)}, "bias");
      expect_dtype(bias, x.dtype(), "bias");
    }
  }
  return {std::move(fields), 0, false};
}

}  // namespace

CombineTransfer::CombineTransfer(HighThroughput::State& state,
                                 const HighThroughput::CombineInput& input,
                                 const HighThroughputHandle& handle,
                                 const Stream& stream,
                                 const Tensor& out_x)
    : state_(state),
      handle_(handle),
      stream_(stream),
      input_(input),
      out_(out_x),
      layout_(make_layout(input, handle)) {
  stream_.wait(input.previous);
  hidden_ = input_.x.dim(1);
  const Shape shape = {handle_.num_tokens(), hidden_};
  if (out_) {
    expect_shape(out_, shape, "out_x");
    expect_dtype(out_, input_.x.dtype(), "out_x");
  } else {
    out_ = Tensor::empty(shape, input_.x.dtype());
  }
  show_rows();
  post_messages();
}

// Makes every rank's rows readable by the ranks of its node.  Where they are already, addresses are
// exchanged; elsewhere rows are copied into a bank first.
void CombineTransfer::show_rows() {
  const Topology& topology = state_.topology();
  sources_.resize(static_cast<size_t>(topology.size));
  const float* weights = input_.topk_weights ? input_.topk_weights.data<float>() : nullptr;
  if (state_.group.shares_address_space()) {
    const Source mine{input_.x.bytes(), weights};
    std::vector<Source> all(sources_.size());
    all_gather_bytes(state_.group, "combine", &mine, sizeof(mine), all.data());
    for (int i = 0; i < state_.node_size(); ++i) {
      const auto rank = static_cast<size_t>(state_.first_rank() + i);
      sources_[rank] = all[rank];
    }
    return;
  }
  Notice mine{layout_.row_bytes(), state_.combine_banks.pick(), 0, {}, {}};
  mine.bank_bytes = state_.combine_banks.bytes(mine.bank);
  const std::vector<Notice> notices = state_.exchange_notices("combine banks", mine);
  std::vector<int64_t> needed;
  for (int r = 0; r < topology.size; ++r) {
    needed.push_back(layout_.block_bytes(handle_.counts.rows(r)));
  }
  banks_ = state_.choose_banks(state_.combine_banks, notices, needed);
  for (int i = 0; i < state_.node_size(); ++i) {
    const int rank = state_.first_rank() + i;
    const int64_t rows = handle_.counts.rows(rank);
    if (rows == 0) {
      continue;
    }
    const int64_t bank = banks_.bank_of[static_cast<size_t>(rank)];
    std::byte* block = state_.combine_banks.window(bank).peer(rank);
    sources_[static_cast<size_t>(rank)] = {
        block, weights != nullptr ? reinterpret_cast<const float*>(block + layout_.offset(1, rows))
                                  : nullptr};
    if (rank != state_.rank()) {
      continue;
    }
    const int64_t bytes = layout_.field_bytes(0);
    parallel_for(stream_, rows, kTokensPerTask, [&](int64_t begin, int64_t end) {
      std::memcpy(block + begin * bytes, input_.x.bytes() + begin * bytes,
                  static_cast<size_t>((end - begin) * bytes));
    });
    if (weights != nullptr) {
      std::memcpy(block + layout_.offset(1, rows), weights,
                  static_cast<size_t>(rows * layout_.field_bytes(1)));
    }
  }
  state_.group.barrier("combine");
}

void CombineTransfer::sum_node(const Route& route,
                               int source,
                               bool round,
                               float* acc_x,
                               float* acc_weights,
                               int64_t token) const {
  std::fill_n(acc_x, hidden_, 0.0f);
  if (acc_weights != nullptr) {
    std::fill_n(acc_weights, handle_.topk, 0.0f);
  }
  for (int i = 0; i < route.num_destinations; ++i) {
    const int rank = route.first + i;
    const int32_t index = route.at(token, rank);
    if (index < 0) {
      continue;
    }
    const Source& rows = sources_[static_cast<size_t>(rank)];
    const int64_t row = handle_.counts.row_begin(source, rank) + index;
    add_row(input_.x.dtype(), rows.x + row * layout_.field_bytes(0), hidden_, acc_x);
    for (int64_t k = 0; acc_weights != nullptr && k < handle_.topk; ++k) {
      acc_weights[k] += rows.weights[row * handle_.topk + k];
    }
  }
  if (round && input_.x.dtype() == DType::kBF16) {
    for (int64_t i = 0; i < hidden_; ++i) {
      acc_x[i] = static_cast<float>(BFloat16(acc_x[i]));
    }
  } else if (round && input_.x.dtype() == DType::kF16) {
    for (int64_t i = 0; i < hidden_; ++i) {
      acc_x[i] = static_cast<float>(Float16(acc_x[i]));
    }
  }
}

void CombineTransfer::post_messages() {
  const Topology& topology = state_.topology();
  if (topology.num_nodes() == 1) {
    return;
  }
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (const Relay& relay : handle_.relays) {
    const int64_t rows = relay.route.num_tokens;
    auto& block = outgoing_.emplace_back(static_cast<size_t>(layout_.block_bytes(rows)));
    parallel_for(stream_, rows, kTokensPerTask, [&](int64_t begin, int64_t end) {
      std::vector<float> acc(static_cast<size_t>(hidden_));
      for (int64_t t = begin; t < end; ++t) {
        float* weights = input_.topk_weights
                             ? reinterpret_cast<float*>(block.data() + layout_.offset(1, rows)) +
                                   t * handle_.topk
                             : nullptr;
        sum_node(relay.route, relay.source, /*round=*/false, acc.data(), weights, t);
        store_row(input_.x.dtype(), acc.data(), hidden_, block.data() + t * layout_.field_bytes(0));
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
  if (exchange_) {
    exchange_->wait();
  }
}

HighThroughput::CombineOutput CombineTransfer::receive() {
  const Topology& topology = state_.topology();
  const int64_t num_tokens = handle_.num_tokens();
  HighThroughput::CombineOutput output;
  output.x = out_;
  if (input_.topk_weights) {
    output.topk_weights = Tensor::empty({num_tokens, handle_.topk}, DType::kF32);
  }
  const bool many_nodes = topology.num_nodes() > 1;
  const DType dtype = input_.x.dtype();
  parallel_for(stream_, num_tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
    const auto width = static_cast<size_t>(hidden_);
    std::vector<float> node_sum(width);
    std::vector<float> total(width);
    std::vector<float> node_weights(static_cast<size_t>(handle_.topk));
    for (int64_t t = begin; t < end; ++t) {
      float* weights =
          output.topk_weights ? output.topk_weights.data<float>() + t * handle_.topk : nullptr;
      if (weights != nullptr) {
        std::fill_n(weights, handle_.topk, 0.0f);
      }
      std::fill(total.begin(), total.end(), 0.0f);
      for (int n = 0; n < topology.num_nodes(); ++n) {
        const int64_t row = handle_.to_nodes.at(t, n);
        if (row < 0) {
          continue;
        }
        if (n == topology.node()) {
          sum_node(handle_.to_ranks, state_.rank(), many_nodes, node_sum.data(),
                   weights != nullptr ? node_weights.data() : nullptr, t);
          for (size_t i = 0; i < width; ++i) {
            total[i] += node_sum[i];
          }
        } else {
          const auto& block = incoming_[static_cast<size_t>(n)];
          const int64_t rows = handle_.to_nodes.copies[static_cast<size_t>(n)];
          add_row(dtype, block.data() + row * layout_.field_bytes(0), hidden_, total.data());
          if (weights != nullptr) {
            std::memcpy(node_weights.data(),
                        block.data() + layout_.offset(1, rows) + row * layout_.field_bytes(1),
                        static_cast<size_t>(layout_.field_bytes(1)));
          }
        }
        for (int64_t k = 0; weights != nullptr && k < handle_.topk; ++k) {
          weights[k] += node_weights[static_cast<size_t>(k)];
        }
      }
      for (const Tensor& bias : input_.bias) {
        if (bias) {
          add_row(dtype, bias.bytes() + t * layout_.field_bytes(0), hidden_, total.data());
        }
      }
      store_row(dtype, total.data(), hidden_, out_.bytes() + t * layout_.field_bytes(0));
    }
  });
  // What others have read from this rank: the token's own rank, or its gateway on this node.
  for (int source = 0; source < topology.size; ++source) {
    const int reader =
        topology.same_node(source) ? source : gateway(topology, source, topology.node());
    state_.group.count_traffic(reader,
                               handle_.counts.sent(source, state_.rank()) * layout_.row_bytes());
  }
  // Rows may be changed by their owners only when everybody has read them.
  state_.group.barrier("combine done");
  output.event = stream_.record();
  return output;
}

}  // namespace moebius
