// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/high_throughput/cuda/high_throughput_nodes.h"
#include "core/cuda/runtime.h"

namespace moebius::comm {

// A combine under way.
struct CudaNodesHighThroughput::Combine {
  CombineInput input;
  const CudaNodesHandle& handle;
  Stream stream;
  RowLayout layout;  // of shown rows, and of sums between nodes: rows, then weights
  int64_t topk;      // of the weights
  Tensor out;
  Tensor out_weights;
  std::vector<Tensor> outgoing = {};   // per relay
  std::vector<Tensor> node_sums = {};  // per node, own one included

  bool has_weights() const { return input.topk_weights.defined(); }
  const float* weights_in(const std::byte* block, int64_t rows) const {
    return reinterpret_cast<const float*>(block + layout.offset(1, rows));
  }
};

Pending<CombineOutput> CudaNodesHighThroughput::combine_async(const State::Combine& given) {
  const auto& [input, handle_, stream, out_x] = given;
  finish_last();
  const CudaNodesHandle& handle = own_nodes_handle(handle_);
  const int64_t topk =
      expect_combine(input, handle.num_rows(), handle.tokens, handle.topk, stream, out_x);
  const Shape shape = {handle.tokens, input.x.dim(1)};
  if (out_x && out_x.dim(1) != shape[1]) {
    throw Unsupported(fmt::format("out_x has {} columns and x {}: over several nodes x has all",
                                  out_x.dim(1), shape[1]));
  }
  std::vector<int64_t> fields = {row_bytes(input.x.dtype(), input.x.dim(1))};
  if (input.topk_weights) {
    fields.push_back(row_bytes(DType::kF32, topk));
  }
  const auto call = std::make_shared<Combine>(
      Combine{.input = input,
              .handle = handle,
              .stream = stream,
              .layout = RowLayout(std::move(fields)),
              .topk = topk,
              .out = out_x ? out_x : arena_.take(shape, input.x.dtype()),
              .out_weights = input.topk_weights_into ? input.topk_weights_into
                             : input.topk_weights ? arena_.take({handle.tokens, topk}, DType::kF32)
                                                  : Tensor()});
  order_after_last(stream);
  stream.wait(input.previous);
  show_rows(*call);
  send_sums(*call);
  sum_own(*call);
  const auto hook = [this, last = leave_unfinished(stream, "combine done")] { finish(last); };
  return {hook, [call, hook] {
            hook();
            return CombineOutput{call->out, call->out_weights, call->stream.record()};
          }};
}

// Puts this rank's rows into its window, for the ranks of its node.
void CudaNodesHighThroughput::show_rows(Combine& call) {
  Notice notice;
  notice.row_bytes = call.layout.row_bytes();
  exchange_notices(group, "combine rows", notice);
  const CountMatrix& counts = call.handle.counts;
  const std::vector<int64_t> needed = bank_bytes(call.layout, counts);
  const int64_t most = *std::max_element(needed.begin(), needed.end());
  if (shown_ == nullptr || shown_->bytes() < most) {
    shown_ = group.make_window("combine rows", most + most / 4);  // no rank reads the old one
  }
  const auto put = [&](int f, const Tensor& rows) {
    cuda::copy(shown_->local() + call.layout.offset(f, counts.rows(rank())), rows.raw(),
               rows.nbytes(), call.stream.native_handle(), device_.index);
  };
  put(0, call.input.x);
  if (call.has_weights()) {
    put(1, call.input.topk_weights);
  }
  meet(call.stream, "combine");
}

SumRowsArgs CudaNodesHighThroughput::sum_of_node(const Combine& call,
                                                 int source,
                                                 const CopyIndex& copies) const {
  const CountMatrix& counts = call.handle.counts;
  SumRowsArgs sum{};
  sum.copies = copies;
  sum.topk = static_cast<int>(call.topk);
  sum.dtype = call.input.x.dtype();
  sum.row_bytes = static_cast<uint32_t>(call.layout.field_bytes(0));
  sum.is_aligned = sum.row_bytes % 16 == 0;
  for (int i = 0; i < node_size(); ++i) {
    const int holder = first_rank() + i;
    const std::byte* block = shown_->peer(holder);
    const int64_t first = counts.row_begin(source, holder);
    sum.rows[i] = block + first * sum.row_bytes;
    if (call.has_weights()) {
      sum.weights[i] = call.weights_in(block, counts.rows(holder)) + first * call.topk;
    }
  }
  return sum;
}

// As a gateway this rank sends its node's sum of each token that it passed on back to where the
// token came from.
void CudaNodesHighThroughput::send_sums(Combine& call) {
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (const CudaNodesHandle::Relay& relay : call.handle.relays) {
    const Tensor& block =
        call.outgoing.emplace_back(arena_.take(call.layout.block_bytes(relay.tokens)));
    SumRowsArgs sum =
        sum_of_node(call, relay.source,
                    {relay.to_ranks.data<int32_t>(), node_size(), relay.tokens, node_size()});
    sum.out = block.bytes();
    if (call.has_weights()) {
      sum.out_weights = const_cast<float*>(call.weights_in(block.bytes(), relay.tokens));
    }
    launch_sum_rows(sum, blocks_of(configs.combine), call.stream);
    sends.push_back({relay.source, block.raw(), block.nbytes()});
  }
  for (int n = 0; n < topology().num_nodes(); ++n) {
    const int64_t rows = call.handle.counts.sent_to_node(rank(), n);
    const Tensor& block = call.node_sums.emplace_back(arena_.take(call.layout.block_bytes(rows)));
    if (n != topology().node()) {
      recvs.push_back({gateway(topology(), rank(), n), block.raw(), block.nbytes()});
    }
  }
  messages_.wait(call.stream.record());
  group.exchange_on(messages_, "combine between nodes", sends, recvs);
}

// Sums own tokens: first the copies of this node, rounded as the sums of other nodes were, then the
// nodes in order, then the biases.
void CudaNodesHighThroughput::sum_own(Combine& call) {
  const CudaNodesHandle& handle = call.handle;
  const int num_nodes = topology().num_nodes();
  const int node = topology().node();
  const auto* to_nodes = handle.to_nodes.data<int32_t>();
  SumRowsArgs own = sum_of_node(call, rank(),
                                {handle.to_ranks.data<int32_t>() + first_rank(), topology().size,
                                 handle.tokens, node_size()});
  std::byte* own_block = call.node_sums[static_cast<size_t>(node)].bytes();
  own.out_index = to_nodes + node;
  own.out_stride = num_nodes;
  own.out = own_block;
  if (call.has_weights()) {
    own.out_weights =
        const_cast<float*>(call.weights_in(own_block, handle.counts.sent_to_node(rank(), node)));
  }
  launch_sum_rows(own, blocks_of(configs.combine), call.stream);
  call.stream.wait(messages_.record());

  SumRowsArgs total{};
  total.copies = {to_nodes, num_nodes, handle.tokens, num_nodes};
  total.topk = own.topk;
  total.dtype = own.dtype;
  total.row_bytes = own.row_bytes;
  total.is_aligned = own.is_aligned && has_whole_words(call.out, total.row_bytes);
  for (int n = 0; n < num_nodes; ++n) {
    const std::byte* block = call.node_sums[static_cast<size_t>(n)].bytes();
    total.rows[n] = block;
    if (call.has_weights()) {
      total.weights[n] = call.weights_in(block, handle.counts.sent_to_node(rank(), n));
    }
  }
  for (size_t b = 0; b < call.input.bias.size(); ++b) {
    const Tensor& bias = call.input.bias[b];
    total.bias[b] = bias ? bias.bytes() : nullptr;
    total.is_aligned = total.is_aligned && has_whole_words(bias, total.row_bytes);
  }
  total.out = call.out.bytes();
  total.out_weights = call.out_weights ? call.out_weights.data<float>() : nullptr;
  launch_sum_rows(total, blocks_of(configs.combine), call.stream);

  // Counts what others read from this rank.  The reader is the token's rank, or its gateway on this
  // node.
  for (int source = 0; source < topology().size; ++source) {
    const int reader = topology().same_node(source) ? source : gateway(topology(), source, node);
    group.count_traffic(reader, handle.counts.sent(source, rank()) * call.layout.row_bytes());
  }
}

}  // namespace moebius::comm
