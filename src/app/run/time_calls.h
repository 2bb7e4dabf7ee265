// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes the timed calls of `moebius run` and counts what they transfer.
#pragma once

#include <cstdint>
#include <vector>

#include "app/options.h"
#include "app/report/trace.h"
#include "app/run/rank_run.h"
#include "moebius/moe_layer.h"

namespace moebius::app {

struct TimedCalls {
  RankFigures figures;              // without node and tokens
  std::vector<int64_t> sent_bytes;  // [rank], in the last call; empty without a group
  std::vector<TraceEvent> trace;    // of all timed calls, with --trace
};

// Calls the layer with hidden [T, H] -> output f32 [T, H], both on the stream's device: once to
// warm up, then --repeat times, which all ranks begin together.  With --graph the timed calls are
// replays of a recorded one.  On a GPU the times of stages come from additional calls, since the
// events between the stages would delay the timed ones.  Collective over the group (null: one
// rank).
TimedCalls time_calls(const RunOptions& options,
                      MoeLayer& layer,
                      const Tensor& hidden,
                      const Tensor& output,
                      const Stream& stream,
                      Group* group);

}  // namespace moebius::app
