// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forecast: the times, bytes and buffers of one backend's call, and which backend is the fastest.
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
  Support support = Support::yes();  // whether the backend accepts the scheme
  bool fits = true;                  // whether the buffers fit into the memory of a rank
  double memory = 0;                 // bytes that a rank has
  int microbatches = 1;              // of the first piece
  int64_t pieces = 0;                // into which low latency cuts the call; 1 for other backends
  // The average numbers of other ranks and nodes that a token of rank 0 goes to.
  double copies = 0, node_copies = 0;
  RankTraffic traffic;  // in the whole call, of the rank that sends most
  Buffers buffers;
  // Microseconds of the slowest rank in the whole call.
  double router = 0, prepare = 0, experts = 0, finalize = 0, shared = 0;
  Timeline line;    // of all pieces, one after the other, without the router
  double call = 0;  // router + line.total
  // The rows that the fullest rank computes in the whole call, and how many of its experts have
  // rows.  They are the same for every backend.
  double rows = 0, touched = 0;

  bool is_beyond_kernels = false;  // more GPUs than the kernels support; it is shown nonetheless

  bool works() const { return support.ok && fits; }
};

// Throws what expect_valid() throws.
Forecast forecast(All2AllBackend backend, const Deployment& deployment, const Machine& machine);

// The backends to compare: kNone where all ranks hold the same tokens, and the three others where
// there are several ranks.  Of these three, only all-gather can be used with sharded experts.
std::vector<All2AllBackend> candidates(const Deployment& deployment);
std::vector<Forecast> forecast_all(const Deployment& deployment, const Machine& machine);
// The fastest backend that works; nullptr where none does.
const Forecast* fastest(const std::vector<Forecast>& forecasts);

struct SweepRow {
  Deployment deployment;
  std::vector<Forecast> forecasts;
};
// Forecasts for 1, 2, 4, ... up to `last` tokens per rank.
std::vector<SweepRow> sweep_tokens(const Deployment& deployment,
                                   const Machine& machine,
                                   int64_t last);
// Forecasts for 2 (or tp) ranks, twice as many, and so on up to `last`.  Beyond the number of
// experts there are enough redundant ones to give each rank one.  Sharded experts are divided as
// far as possible; throws InvalidArgument where they cannot be divided at all.
std::vector<SweepRow> sweep_ranks(const Deployment& deployment, const Machine& machine, int last);

// A number of tokens per rank from which `later` is faster than `earlier`, whatever memory they
// need.  It is `low` where `later` is faster already, and otherwise a number in (low, high] that is
// found by halving, of which there may be several.  nullopt where `later` is slower at both ends.
std::optional<int64_t> crossover_tokens(Deployment deployment,
                                        const Machine& machine,
                                        All2AllBackend earlier,
                                        All2AllBackend later,
                                        int64_t low,
                                        int64_t high);

}  // namespace moebius::plan
