// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Traffic: the bytes that ranks send in one call, as the transports of src/comm count them
// (docs/protocol.md).  What stays on a rank does not count, and what a gateway passes on counts as
// sent by the gateway.
#pragma once

#include <vector>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/routing/row_layout.h"
#include "plan/copies.h"

namespace moebius::plan {

// The bytes of one rank in one direction of the layer, dispatch or combine.
struct Way {
  double intra_out = 0, intra_in = 0;  // within the node, including relayed bytes
  double inter_out = 0, inter_in = 0;  // between nodes
  double relay_out = 0, relay_in = 0;  // the part of intra that came from, or goes to, other nodes
};

struct RankTraffic {
  Way dispatch;
  Way combine;
  double control_intra = 0, control_inter = 0;  // messages between hosts

  double intra_out() const { return dispatch.intra_out + combine.intra_out + control_intra; }
  double inter_out() const { return dispatch.inter_out + combine.inter_out + control_inter; }
};

// The traffic of every rank in one pass through the transport with these copies, to which every
// rank brings `tokens` tokens.  Low latency takes at most low_latency_tokens() of them.
std::vector<RankTraffic> traffic(All2AllBackend backend,
                                 const Deployment& deployment,
                                 const Copies& copies,
                                 double tokens);

// The traffic of the layer after that of the backend, all of it as `combine`.  Without a backend,
// partial outputs are summed over all ranks; with one, slices of outputs are gathered in TP groups.
// Outputs are in the layer's dtype.
std::vector<RankTraffic> ending_traffic(All2AllBackend backend, const Deployment& deployment);

// How rows travel by low latency.
LowLatencyRow low_latency_row(const Deployment& deployment);
// The most tokens of a rank in one call of low latency; longer calls are cut.
int64_t low_latency_tokens();
LowLatencyOptions low_latency_options(const Deployment& deployment);

// The bytes of a row of each payload that high throughput dispatches, and the layout of these rows
// with ids and weights, both in banks and in messages.
std::vector<int64_t> high_throughput_payloads(const Deployment& deployment);
RowLayout high_throughput_layout(const Deployment& deployment);
// The bytes of a row on its way to the experts, including ids and weights.
double dispatch_row_bytes(All2AllBackend backend, const Deployment& deployment);
// Whether rows are quantized before they travel; otherwise they are quantized where they arrive.
bool travels_quantized(All2AllBackend backend, const Formats& formats);

}  // namespace moebius::plan
