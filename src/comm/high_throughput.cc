// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/combine_transfer.h"
#include "comm/dispatch_transfer.h"
#include "comm/high_throughput_state.h"
#include "core/parallel.h"

namespace moebius {

namespace {

const HighThroughputHandle& own_handle(const DispatchHandle& handle) {
  const auto* own = dynamic_cast<const HighThroughputHandle*>(&handle);
  expect(own != nullptr, "the handle does not come from a high-throughput dispatch");
  return *own;
}

// hook and receive of a transfer; receive finishes first where nobody called the hook.
template <typename Result, typename Transfer>
Pending<Result> pending(std::shared_ptr<Transfer> transfer) {
  auto finished = std::make_shared<bool>(false);
  const auto hook = [transfer, finished] {
    if (!*finished) {
      *finished = true;
      transfer->finish();
    }
  };
  return {hook, [transfer, hook] {
            hook();
            return transfer->receive();
          }};
}

}  // namespace

HighThroughput::HighThroughput(Group& group,
                               ExpertPlacement placement,
                               DispatchConfig dispatch_config,
                               DispatchConfig combine_config) {
  dispatch_config.validate();
  combine_config.validate();
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    expect(placement.rank_of(e) < group.size(),
           fmt::format("expert {} is placed on rank {}, but the group has {} ranks", e,
                       placement.rank_of(e), group.size()));
  }
  state_ = std::make_unique<State>(group, std::move(placement));
}

HighThroughput::~HighThroughput() = default;

DispatchLayout HighThroughput::layout(const Tensor& topk_ids, const Stream&) const {
  expect_ids(topk_ids, state_->placement.num_experts());
  const Topology& topology = state_->topology();
  const auto* ids = topk_ids.data<int32_t>();
  const int64_t num_tokens = topk_ids.dim(0);
  const Route ranks =
      make_route(ids, num_tokens, topk_ids.dim(1), state_->rank_of, 0, topology.size);
  const Route nodes =
      make_route(ids, num_tokens, topk_ids.dim(1), state_->node_of, 0, topology.num_nodes());
  const auto to_tensor = [](const std::vector<int64_t>& counts) {
    const Tensor t = Tensor::empty({static_cast<int64_t>(counts.size())}, DType::kI32);
    std::transform(counts.begin(), counts.end(), t.data<int32_t>(),
                   [](int64_t count) { return static_cast<int32_t>(count); });
    return t;
  };
  DispatchLayout layout;
  layout.tokens_per_rank = to_tensor(ranks.copies);
  layout.tokens_per_node = to_tensor(nodes.copies);
  layout.tokens_per_expert = Tensor::zeros({state_->placement.num_experts()}, DType::kI32);
  for (int64_t i = 0; i < topk_ids.numel(); ++i) {
    if (ids[i] >= 0) {
      ++layout.tokens_per_expert.data<int32_t>()[ids[i]];
    }
  }
  layout.is_token_in_rank = Tensor::empty({num_tokens, topology.size}, DType::kBool);
  std::transform(ranks.index.begin(), ranks.index.end(), layout.is_token_in_rank.data<bool>(),
                 [](int32_t index) { return index >= 0; });
  return layout;
}

Pending<DispatchOutput> HighThroughput::dispatch_async(const DispatchInput& input,
                                                       const Stream& stream) {
  return pending<DispatchOutput>(std::make_shared<DispatchTransfer>(*state_, input, stream));
}

DispatchOutput HighThroughput::dispatch(const DispatchInput& input, const Stream& stream) {
  return dispatch_async(input, stream).finish();
}

DispatchOutput HighThroughput::dispatch_cached(std::span<const Tensor> payloads,
                                               const DispatchHandle& handle,
                                               const Stream& stream) {
  DispatchTransfer transfer(*state_, payloads, own_handle(handle), stream);
  transfer.finish();
  return transfer.receive();
}

Pending<HighThroughput::CombineOutput> HighThroughput::combine_async(const CombineInput& input,
                                                                     const DispatchHandle& handle,
                                                                     const Stream& stream,
                                                                     const Tensor& out_x) {
  return pending<CombineOutput>(
      std::make_shared<CombineTransfer>(*state_, input, own_handle(handle), stream, out_x));
}

HighThroughput::CombineOutput HighThroughput::combine(const CombineInput& input,
                                                      const DispatchHandle& handle,
                                                      const Stream& stream,
                                                      const Tensor& out_x) {
  return combine_async(input, handle, stream, out_x).finish();
}

TransportStatistics HighThroughput::statistics() const {
  return state_->statistics;
}

}  // namespace moebius
