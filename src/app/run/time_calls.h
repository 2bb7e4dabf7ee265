// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The timed calls of `moebius run`, and what is counted in them.
#pragma once

#include <cstdint>
#include <vector>

#include "app/options.h"
#include "app/report/trace.h"
#include "app/run/rank_run.h"
#include "moebius/moe_layer.h"

namespace moebius::app {

struct TimedCalls {
  RankFigures figures;              // but for node and tokens
  std::vector<int64_t> sent_bytes;  // [rank], in the last call; empty without a group
  std::vector<TraceEvent> trace;    // of all timed calls, with --trace
};

// One warm-up call, then --repeat timed ones, which all ranks begin together; with --graph replays
// of one that has been recorded.  On a GPU the profile's times come from calls of their own, since
// the events between them would delay the others.  Collective over the group (null: one rank).
// hidden [T, H] -> output f32 [T, H], both where the stream is.
TimedCalls time_calls(const RunOptions& options,
                      MoeLayer& layer,
                      const Tensor& hidden,
                      const Tensor& output,
                      const Stream& stream,
                      Group* group);

}  // namespace moebius::app
