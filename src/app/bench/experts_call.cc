// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/experts_call.h"

#include <utility>

#include "moebius/weight_and_reduce.h"

namespace moebius::bench {

ExpertsCall::ExpertsCall(std::shared_ptr<Experts> experts, ExpertsInput input, const Stream& stream)
    : experts_(std::move(experts)), input_(std::move(input)), stream_(stream) {
  const bool is_batched = experts_->desc().format == ActivationFormat::kBatched;
  const ExpertsWorkspace sizes = experts_->workspace(input_.x.dim(is_batched ? 1 : 0));
  const Device device = stream.device();
  intermediate_ = Tensor::empty(sizes.intermediate, sizes.dtype, device);
  scratch_ = Tensor::empty({sizes.scratch_bytes}, DType::kU8, device);
  output_ = Tensor::zeros(sizes.output, sizes.dtype, device);
}

Tensor ExpertsCall::output() const {
  if (experts_->desc().format == ActivationFormat::kBatched) {
    return output_;
  }
  const Tensor sums = Tensor::empty(input_.x.shape(), output_.dtype(), stream_.device());
  make_weight_and_reduce(experts_->traits().weight_and_reduce)
      ->apply({output_, input_.topk_weights, input_.topk_ids}, sums, stream_);
  return sums;
}

}  // namespace moebius::bench
