// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forecast: one backend's call, from the parts; and who is fastest where.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "moebius/support.h"
#include "plan/buffers.h"
#include "plan/stages.h"

namespace moebius::plan {

struct Forecast {
  All2AllBackend backend = All2AllBackend::kNone;
  Support support = Support::yes();  // of the scheme, by the backend
  bool fits = true;                  // into the memory of a rank
  double memory = 0;                 // bytes that a rank has
  int microbatches = 1;              // that the first piece is cut into
  int64_t pieces = 0;                // that low latency cuts the call into; else 1
  // Per token of rank 0: ranks and nodes that it goes to, own excluded.
  double copies = 0, node_copies = 0;
  RankTraffic traffic;  // of a call and the rank that sends most of it
  Buffers buffers;
  // Of the slowest rank, whole call.
  double router = 0, prepare = 0, experts = 0, finalize = 0, shared = 0;
  Timeline line;    // pieces, one after the other; without the router
  double call = 0;  // router and that
  // Of the fullest rank, whole call: rows that it computes, and its experts with rows.  The same
  // for every backend.
  double rows = 0, touched = 0;

  bool is_beyond_kernels = false;  // more GPUs than kernels take today: shown all the same

  bool works() const { return support.ok && fits; }
};

// Throws InvalidArgument for what expect_valid() refuses.
Forecast forecast(All2AllBackend backend, const Deployment& deployment, const Machine& machine);

// Backends to compare: none where all ranks hold the same tokens, the three for several ranks; of
// them only all-gather where experts are sharded.
std::vector<All2AllBackend> candidates(const Deployment& deployment);
std::vector<Forecast> forecast_all(const Deployment& deployment, const Machine& machine);
// The fastest that works; nullptr where none does.
const Forecast* fastest(const std::vector<Forecast>& forecasts);

struct SweepRow {
  Deployment deployment;
  std::vector<Forecast> forecasts;
};
// Numbers of tokens per rank, 1 to `last` by powers of two.
std::vector<SweepRow> sweep_tokens(const Deployment& deployment,
                                   const Machine& machine,
                                   int64_t last);
// Numbers of ranks, 2 (or tp) to `last` by powers of two; beyond the number of experts with as many
// redundant ones as give each rank one, or as far as sharded experts can be divided.  Throws
// InvalidArgument where the first of them is too many already.
std::vector<SweepRow> sweep_ranks(const Deployment& deployment, const Machine& machine, int last);

// A number of tokens per rank from which `later` is the faster of the two, memory left aside: `low`
// where it is the faster there, else one in (low, high] found by halving; there may be more than
// one.  nullopt where it is the slower at `low` and at `high`.
std::optional<int64_t> crossover_tokens(Deployment deployment,
                                        const Machine& machine,
                                        All2AllBackend earlier,
                                        All2AllBackend later,
                                        int64_t low,
                                        int64_t high);

}  // namespace moebius::plan
