// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The prepare/finalize backends over a group of ranks.  The group must outlive what is made here.
// Every rank makes the same backend with the same arguments.  Its calls are collective, even those
// of a rank without tokens.
// A backend has the state of one layer's micro-batches.  What is large belongs to the transport,
// which the backends of many layers share (transports.h): memory, statistics(), excluded ranks and
// failures are those of the transport.
// Every rank brings tokens of its own.  Ranks that hold the same tokens (tensor parallelism) each
// bring a slice of them, see MoeLayer.
// Behaviour follows vLLM's prepare/finalize classes naive_dp_ep, deepep_ht and deepep_ll.
// Thread-safety: one thread at a time may use an object, see PrepareFinalize.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/api.h"
#include "moebius/dispatch.h"
#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "moebius/prepare_finalize.h"

namespace moebius MOEBIUS_API {

// In every backend rows travel quantized if their scales belong to the row.  This includes formats
// (mx and nvfp4) of which the experts take unquantized rows where nothing travels; see
// ExpertsTraits::takes_quantized_transfers.  A global scale for all rows is the same on every rank
// and does not travel.

// Every rank gets every token.  Rows, ids, weights and scales are gathered, each rank computes its
// experts (or its shard of all experts) on all rows, and the partial sums are reduced and
// scattered.  monolithic: router logits are gathered instead of ids and weights, and the kernel
// routes.  Rows with a dynamic scale per tensor, which must cover all tokens, are quantized after
// they have arrived.
std::unique_ptr<PrepareFinalize> make_allgather_reducescatter(Group& group,
                                                              bool monolithic = false);

// A token goes once to each rank that owns one of its experts.  Rows travel quantized, except where
// one scale serves all of them: they are quantized after they have arrived then.
// capacity: see MoeLayerOptions; throws Unsupported where there can be none.
// Throws InvalidArgument where there is no transport.
std::unique_ptr<PrepareFinalize> make_high_throughput(
    std::shared_ptr<HighThroughput> transport, std::optional<int64_t> capacity = std::nullopt);

// Batched format, with at most LowLatencyOptions::max_tokens tokens per rank and call.  Rows are
// cast to fp8 in flight when the scheme is fp8 with groups of 128.  Where else the scales belong to
// a row (a scale per token, other groups, mx, nvfp4), tokens are quantized once and travel so.
// Other schemes quantize the rows after they have arrived, expert by expert.  Weights are applied
// in combine, so the experts must delegate.  It does not accept a deferred fp8 cast, or an fp8 cast
// of hidden sizes that are not multiples of 128.  Throws InvalidArgument where there is no
// transport.
std::unique_ptr<PrepareFinalize> make_low_latency(std::shared_ptr<LowLatency> transport);

}  // namespace moebius
