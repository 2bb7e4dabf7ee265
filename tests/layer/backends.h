// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The backends over ranks, for tests that run with each of them.
#pragma once

#include <cstdint>
#include <memory>

#include "moebius/all2all.h"
#include "moebius/parallel_config.h"
#include "moebius/transports.h"
#include "problems/place.h"

namespace moebius::testing {

inline constexpr All2AllBackend kBackends[] = {All2AllBackend::kAllGatherReduceScatter,
                                               All2AllBackend::kHighThroughput,
                                               All2AllBackend::kLowLatency};

// A backend for rows in f32 with one expert per token, where experts are placed linearly and a rank
// brings up to max_tokens tokens.
std::unique_ptr<PrepareFinalize> make_backend(All2AllBackend backend,
                                              Transports& transports,
                                              int64_t num_experts,
                                              int64_t max_tokens,
                                              int64_t hidden);
std::unique_ptr<PrepareFinalize> make_backend(
    All2AllBackend backend, Group& group, int64_t num_experts, int64_t max_tokens, int64_t hidden);

// `input` on a place, with the static scales of `quant`, which must outlive the result.
PrepareInput input_there(const Place& place, const PrepareInput& input, QuantConfig& quant);

inline ActivationFormat format_of(All2AllBackend backend) {
  return backend == All2AllBackend::kLowLatency ? ActivationFormat::kBatched
                                                : ActivationFormat::kStandard;
}

}  // namespace moebius::testing
