// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What HighThroughput must be on every device: the calls of its header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "comm/routing/row_layout.h"
#include "comm/transfer.h"
#include "moebius/dispatch.h"

namespace moebius {

struct HighThroughput::State {
  struct Configs {
    DispatchConfig dispatch;
    DispatchConfig combine;
  };

  State(Group& g, ExpertPlacement p) : group(g), placement(std::move(p)) {}
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  virtual DispatchLayout layout(const Tensor& topk_ids,
                                const Stream& stream,
                                const DispatchLayout& into) = 0;
  virtual Pending<DispatchOutput> dispatch_async(const DispatchInput& input,
                                                 const Stream& stream) = 0;
  virtual Pending<DispatchOutput> dispatch_cached_async(const CachedDispatchInput& input,
                                                        const DispatchHandle& handle,
                                                        const Stream& stream) = 0;
  virtual ExpertOrder expert_order(const DispatchOutput& output,
                                   int64_t expert_alignment,
                                   const Stream& stream) const = 0;
  using Combine = CombineCall<CombineInput, DispatchHandle>;
  virtual Pending<CombineOutput> combine_async(const Combine& call) = 0;
  virtual bool takes_addend() const { return false; }
  // Throws InvalidArgument for configs that the device cannot hold, and makes ready for a change.
  virtual void expect_configs(const Configs& /*next*/) {}
  virtual TransportStatistics statistics() const = 0;
  virtual void check() {}
  virtual void trim() = 0;
  virtual int64_t bytes() const = 0;

  Group& group;
  const ExpertPlacement placement;
  Configs configs;  // what the next calls use; HighThroughput sets them
};

// Whether a dispatch goes where its layout says instead of counting its ids.
inline bool has_layout(const DispatchInput& input) {
  return input.layout.is_token_in_rank.defined();
}
// The tokens of a dispatch that has passed expect_routing().
int64_t num_tokens_of(const DispatchInput& input);
int64_t topk_of(const DispatchInput& input);  // 0 without ids
// What travels of the routing, per row.  Without ids, what goes to a gateway has a flag per rank.
RowLayout::Routing routing_of(const DispatchInput& input, const Topology& topology);
// Throws InvalidArgument unless ids, weights and layout are there and of the right kind.  The
// values of ids are not checked.
void expect_routing(const DispatchInput& input,
                    const ExpertPlacement& placement,
                    const Group& group);
// The K of the weights that a combine sums; 0 without weights.  Throws InvalidArgument unless they
// are those of `num_rows` rows of a dispatch with `topk`.
int64_t expect_combine_weights(const CombineInput& input,
                               int64_t num_rows,
                               int64_t topk,
                               Device device);

// Throws InvalidArgument unless a combine may write its sums, of this shape, into out_x from
// first_column on.
void expect_combine_output(const Tensor& out_x,
                           int64_t first_column,
                           const Shape& shape,
                           DType dtype);

// The memory of a layout of so many tokens: that of `into` where it is given, and else what
// take(shape, dtype) makes.  Throws InvalidArgument for memory that does not fit.
DispatchLayout place_layout(const DispatchLayout& into,
                            int64_t num_tokens,
                            const ExpertPlacement& placement,
                            const Group& group,
                            const std::function<Tensor(const Shape&, DType)>& take);

std::unique_ptr<HighThroughput::State> make_cpu_high_throughput(Group& group,
                                                                ExpertPlacement placement);

}  // namespace moebius
