// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cpu/cpu_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/high_throughput/cpu/combine_transfer.h"
#include "comm/high_throughput/cpu/dispatch_transfer.h"

namespace moebius {

namespace {

const HighThroughputHandle& own_handle(const DispatchHandle& handle) {
  const auto* own = dynamic_cast<const HighThroughputHandle*>(&handle);
  expect(own != nullptr, "the handle does not come from a high-throughput dispatch");
  return *own;
}

auto halves_of(const auto& transfer) {
  return in_halves([transfer] { transfer->finish(); }, [transfer] { return transfer->receive(); });
}

}  // namespace

CpuHighThroughput::CpuHighThroughput(Group& g, ExpertPlacement p) : State(g, std::move(p)) {
  rank_ids.resize(static_cast<size_t>(topology().size) + 1);
  std::iota(rank_ids.begin(), rank_ids.end(), 0);
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    rank_of.push_back(placement.rank_of(e));
    node_of.push_back(topology().node_of(placement.rank_of(e)));
  }
}

DispatchLayout CpuHighThroughput::layout(const Tensor& topk_ids,
                                         const Stream&,
                                         const DispatchLayout& into) {
  expect_ids(topk_ids, placement.num_experts());
  const Topology& topology = group.topology();
  const Ids ids = Ids::of(topk_ids);
  const int64_t num_tokens = topk_ids.dim(0);
  const Route ranks = make_route(ids, num_tokens, topk_ids.dim(1), rank_of, 0, topology.size);
  const Route nodes =
      make_route(ids, num_tokens, topk_ids.dim(1), node_of, 0, topology.num_nodes());
  DispatchLayout result =
      place_layout(into, num_tokens, placement, group,
                   [](const Shape& shape, DType dtype) { return Tensor::empty(shape, dtype); });
  const auto write = [](const std::vector<int64_t>& counts, const Tensor& to) {
    std::transform(counts.begin(), counts.end(), to.data<int32_t>(),
                   [](int64_t count) { return static_cast<int32_t>(count); });
  };
  write(ranks.copies, result.tokens_per_rank);
  write(nodes.copies, result.tokens_per_node);
  std::fill_n(result.tokens_per_expert.data<int32_t>(), placement.num_experts(), 0);
  for (int64_t i = 0; i < topk_ids.numel(); ++i) {
    if (ids[i] >= 0) {
      ++result.tokens_per_expert.data<int32_t>()[ids[i]];
    }
  }
  std::transform(ranks.index.begin(), ranks.index.end(), result.is_token_in_rank.data<bool>(),
                 [](int32_t index) { return index >= 0; });
  return result;
}

Pending<DispatchOutput> CpuHighThroughput::dispatch_async(const DispatchInput& input,
                                                          const Stream& stream) {
  expect_ge(input.capacity, 0, "capacity");
  if (input.capacity > 0) {
    throw Unsupported(
        fmt::format("a dispatch with a capacity ({}) is for GPUs of one node", input.capacity));
  }
  stream.wait(input.previous);
  return halves_of(std::make_shared<DispatchTransfer>(*this, input, stream));
}

Pending<DispatchOutput> CpuHighThroughput::dispatch_cached_async(const CachedDispatchInput& input,
                                                                 const DispatchHandle& handle,
                                                                 const Stream& stream) {
  stream.wait(input.previous);
  return halves_of(
      std::make_shared<DispatchTransfer>(*this, input.payloads, own_handle(handle), stream));
}

Pending<CombineOutput> CpuHighThroughput::combine_async(const Combine& call) {
  call.stream.wait(call.input.previous);
  return halves_of(std::make_shared<CombineTransfer>(*this, call.input, own_handle(call.handle),
                                                     call.stream, call.out));
}

std::unique_ptr<HighThroughput::State> make_cpu_high_throughput(Group& group,
                                                                ExpertPlacement placement) {
  return std::make_unique<CpuHighThroughput>(group, std::move(placement));
}

Tensor HighThroughputHandle::rank_prefix() const {
  const std::vector<int32_t> prefix = counts.rank_prefix();
  const Tensor t = Tensor::empty({counts.num_ranks, counts.num_ranks}, DType::kI32);
  std::copy(prefix.begin(), prefix.end(), t.data<int32_t>());
  return t;
}

Tensor HighThroughputHandle::source_rank() const {
  const Tensor ranks = Tensor::empty({num_rows()}, DType::kI32);
  for (int s = 0; s < counts.num_ranks; ++s) {
    std::fill(ranks.data<int32_t>() + counts.row_begin(s, rank),
              ranks.data<int32_t>() + counts.row_begin(s + 1, rank), s);
  }
  return ranks;
}

}  // namespace moebius
