// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/load_counter.h"

#include "layer/rows/row_ops.h"

namespace moebius {

LoadCounter::LoadCounter(int most_microbatches, int64_t num_local_experts)
    : loads_(Tensor::zeros({most_microbatches, num_local_experts}, DType::kI32)) {}

void LoadCounter::begin(int num_microbatches, const Stream& stream) {
  if (loads_.device() != stream.device()) {
    loads_ = Tensor::zeros(loads_.shape(), DType::kI32, stream.device());
  }
  num_microbatches_ = num_microbatches;
  stream_ = stream;
}

void LoadCounter::count_own(const KernelInput& input, const Stream& stream) {
  if (input.own_load) {
    count_expert_tokens(input.topk_ids, {}, input.own_load, stream);
  }
}

void LoadCounter::count(int microbatch,
                        const PrepareResult& prepared,
                        const Tensor& expert_map,
                        const Stream& stream) {
  const Tensor own = of(microbatch);
  if (prepared.expert_num_tokens) {
    copy_counts(prepared.expert_num_tokens, own, stream);
  } else {
    count_expert_tokens(prepared.topk_ids, expert_map, own, stream);
  }
}

Tensor LoadCounter::total() const {
  const Tensor on_cpu = to_device(by_microbatch(), Device::cpu(), stream_);
  Tensor sum = Tensor::zeros({on_cpu.dim(1)}, DType::kI32);
  for (int64_t i = 0; i < on_cpu.numel(); ++i) {
    sum.data<int32_t>()[i % sum.numel()] += on_cpu.data<int32_t>()[i];
  }
  return sum;
}

}  // namespace moebius
