// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/layer/backends.h"

#include <cstdint>
#include <memory>

namespace moebius::testing {

std::unique_ptr<PrepareFinalize> make_backend(All2AllBackend backend,
                                              Transports& transports,
                                              int64_t num_experts,
                                              int64_t max_tokens,
                                              int64_t hidden) {
  const auto placement = ExpertPlacement::linear(num_experts, transports.group().size());
  switch (backend) {
    case All2AllBackend::kHighThroughput:
      return make_high_throughput(transports.high_throughput(placement));
    case All2AllBackend::kLowLatency:
      return make_low_latency(transports.low_latency(
          placement,
          {.max_tokens = max_tokens, .hidden = hidden, .topk = 1, .in_dtype = DType::kF32}));
    default:
      return make_allgather_reducescatter(transports.group());
  }
}

std::unique_ptr<PrepareFinalize> make_backend(
    All2AllBackend backend, Group& group, int64_t num_experts, int64_t max_tokens, int64_t hidden) {
  Transports transports(group);
  return make_backend(backend, transports, num_experts, max_tokens, hidden);
}

PrepareInput input_there(const Place& place, const PrepareInput& input, QuantConfig& quant) {
  quant.a1.scale = place.take(quant.a1.scale);
  quant.a1.alpha_or_gscale = place.take(quant.a1.alpha_or_gscale);
  PrepareInput there = input;
  there.quant = &quant;
  for (const auto part :
       {&PrepareInput::hidden, &PrepareInput::topk_ids, &PrepareInput::topk_weights,
        &PrepareInput::router_logits, &PrepareInput::lora_ids, &PrepareInput::expert_map}) {
    there.*part = place.take(input.*part);
  }
  return there;
}

}  // namespace moebius::testing
