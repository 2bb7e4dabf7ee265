// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Traffic: bytes that ranks send for one call, as the transports of src/comm count them
// (docs/protocol.md): own rank excluded, what a gateway passes on is the gateway's.
#pragma once

#include <vector>

#include "comm/routing/row_layout.h"
#include "plan/copies.h"

namespace moebius::plan {

// Of one rank in one direction of the layer (dispatch or combine).
struct Way {
  double intra_out = 0, intra_in = 0;  // within the node, relayed bytes included
  double inter_out = 0, inter_in = 0;  // between nodes
  double relay_out = 0, relay_in = 0;  // the part of intra that came from, or goes to, other nodes
};

struct RankTraffic {
  Way dispatch;
  Way combine;
  double control_intra = 0, control_inter = 0;  // what hosts tell each other

  double intra_out() const { return dispatch.intra_out + combine.intra_out + control_intra; }
  double inter_out() const { return dispatch.inter_out + combine.inter_out + control_inter; }
};

// One pass through the transport with these copies; low latency takes at most
// low_latency_tokens() per rank and pass, and tokens is what every rank brings to it.
std::vector<RankTraffic> traffic(All2AllBackend backend,
                                 const Deployment& deployment,
                                 const Copies& copies,
                                 double tokens);

// What the layer moves after the backend, all of it as `combine`: partial outputs summed over all
// ranks where there is none, else slices of outputs gathered in TP groups.  Outputs are in the
// layer's dtype.
std::vector<RankTraffic> ending_traffic(All2AllBackend backend, const Deployment& deployment);

// Tokens of one rank in one call of low latency: longer calls are cut.
int64_t low_latency_tokens();
LowLatencyOptions low_latency_options(const Deployment& deployment);

// Rows of high throughput's dispatch, in banks and in messages.
RowLayout high_throughput_layout(const Deployment& deployment);
// One row on its way to experts, ids and weights included.
double dispatch_row_bytes(All2AllBackend backend, const Deployment& deployment);
// Whether rows travel quantized; else they are quantized where they arrive.
bool travels_quantized(All2AllBackend backend, const Formats& formats);

}  // namespace moebius::plan
