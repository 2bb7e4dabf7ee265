// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What HighThroughput must be on every device: the calls of its header.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "comm/transfer.h"
#include "moebius/dispatch.h"

namespace moebius {

struct HighThroughput::State {
  State(Group& g, ExpertPlacement p) : group(g), placement(std::move(p)) {}
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  virtual DispatchLayout layout(const Tensor& topk_ids, const Stream& stream) const = 0;
  virtual Pending<DispatchOutput> dispatch_async(const DispatchInput& input,
                                                 const Stream& stream) = 0;
  virtual DispatchOutput dispatch_cached(std::span<const Tensor> payloads,
                                         const DispatchHandle& handle,
                                         const Stream& stream) = 0;
  virtual ExpertOrder expert_order(const DispatchOutput& output,
                                   int64_t expert_alignment,
                                   const Stream& stream) const = 0;
  using Combine = CombineCall<CombineInput, DispatchHandle>;
  virtual Pending<CombineOutput> combine_async(const Combine& call) = 0;
  virtual bool takes_addend() const { return false; }
  virtual TransportStatistics statistics() const = 0;
  virtual void check() {}
  virtual int64_t bytes() const = 0;

  Group& group;
  const ExpertPlacement placement;
  struct Configs {
    DispatchConfig dispatch;
    DispatchConfig combine;
  };
  Configs configs;  // as the object was described; HighThroughput sets them
};

// Throws InvalidArgument unless a combine may write its sums, of this shape, into out_x from
// first_column on.
void expect_combine_output(const Tensor& out_x,
                           int64_t first_column,
                           const Shape& shape,
                           DType dtype);

std::unique_ptr<HighThroughput::State> make_cpu_high_throughput(Group& group,
                                                                ExpertPlacement placement);

}  // namespace moebius
