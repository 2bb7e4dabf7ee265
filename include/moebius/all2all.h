// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The prepare/finalize backends over a group of ranks.  The group must outlive what is made here.
// Every rank makes the same backend with the same arguments; calls are collective, also with no
// rows. Tokens are every rank's own: ranks that hold the same tokens (tensor parallelism) each
// bring a slice of them (see MoeLayer). Source of the behaviour: vLLM's naive_dp_ep, deepep_ht and
// deepep_ll prepare/finalize classes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/dispatch.h"
#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

// Every rank gets every token: rows, ids, weights and scales are gathered; each rank computes its
// experts (or its shard of all) on all of them; partial sums are reduced and scattered.
// Monolithic: logits are gathered instead of ids and weights, and the kernel routes.
// Rows are quantized before they travel, except with a dynamic scale per tensor, which is one scale
// of all tokens and so taken after.  A static scale stays where it is: it is the same on every
// rank.
std::unique_ptr<PrepareFinalize> make_allgather_reducescatter(Group& group,
                                                              bool monolithic = false);

// A row goes to the ranks that own one of its experts.  Rows quantized by block travel quantized;
// other schemes quantize what has arrived.  num_sms: see DispatchConfig; 0: as computed there.
// capacity: see MoeLayerOptions; throws Unsupported where there can be none.
std::unique_ptr<PrepareFinalize> make_high_throughput(
    Group& group,
    ExpertPlacement placement,
    int num_sms = 0,
    std::optional<int64_t> capacity = std::nullopt);

// Batched format, at most options.max_tokens per rank and call.  Rows are cast to fp8 in flight
// when the scheme is fp8 with groups of 128; other schemes quantize what has arrived, expert by
// expert. Weights are applied in combine, so the experts must delegate.  Refuses to defer the fp8
// cast, hidden sizes that are no multiple of 128 with it, and fp8 with a scale per token.
std::unique_ptr<PrepareFinalize> make_low_latency(Group& group,
                                                  ExpertPlacement placement,
                                                  const LowLatencyOptions& options);

}  // namespace moebius
