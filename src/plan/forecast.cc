// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/forecast.h"

#include <algorithm>

#include "comm/device/signals.h"
#include "moebius/error.h"
#include "moebius/modular_kernel.h"
#include "plan/formats.h"

namespace moebius::plan {

namespace {

// How many micro-batches may be between the begin of prepare and the end of finalize at a time; see
// prepare_finalize.h.
int max_in_flight(All2AllBackend backend) {
  return backend == All2AllBackend::kLowLatency ? 2 : 7;
}

// Whether rows travel while others are computed.  All-gather is one step: on a CPU nothing travels
// while it computes.
bool overlaps(All2AllBackend backend, const Deployment& d) {
  return d.device.is_cuda() || backend != All2AllBackend::kAllGatherReduceScatter;
}

Timeline in_order(const MicrobatchTimes& p, int parts) {
  const double travelled = parts * (p.there + p.back);
  const double computed =
      p.prepare + p.shared + p.before_experts + p.experts + p.after_experts + p.receive;
  return {.total = parts * computed + travelled, .travelled = travelled, .waited = travelled};
}

Timeline piece_timeline(All2AllBackend backend,
                        const Deployment& d,
                        const StageTimes& stages,
                        int count) {
  // ModularKernel decides in the same way when shared experts run.
  const bool early = d.device.is_cuda() && (backend != All2AllBackend::kHighThroughput ||
                                            d.topology().num_nodes() > 1 || stages.parts_back > 1);
  std::vector<MicrobatchTimes> parts;
  parts.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    parts.push_back(stages.part(count == 1 ? early : 2 * i + 1 < count, /*in_parts=*/count == 1));
  }
  return overlaps(backend, d) ? run_schedule(parts, max_in_flight(backend))
                              : in_order(parts[0], count);
}

void add(Way& to, const Way& more, double times) {
  for (double Way::*bytes : {&Way::intra_out, &Way::intra_in, &Way::inter_out, &Way::inter_in,
                             &Way::relay_out, &Way::relay_in}) {
    to.*bytes += times * more.*bytes;
  }
}

struct Piece {
  int64_t tokens;
  int64_t times;
};

// Low latency cuts a call into pieces of low_latency_tokens() and the rest; other backends do not
// cut.
std::vector<Piece> pieces_of(All2AllBackend backend, int64_t tokens) {
  const int64_t most = backend == All2AllBackend::kLowLatency ? low_latency_tokens() : tokens;
  std::vector<Piece> pieces = {{most, tokens / most}, {tokens % most, 1}};
  std::erase_if(pieces, [](const Piece& p) { return p.tokens == 0 || p.times == 0; });
  return pieces;
}

int num_parts(All2AllBackend backend, const Deployment& d, int64_t tokens) {
  const int64_t least =
      default_min_microbatch_tokens(d.layer.routing.num_experts, d.layer.routing.topk,
                                    backend == All2AllBackend::kNone ? 1 : d.ranks, d.device);
  return static_cast<int>(std::clamp<int64_t>(tokens / least, 1, d.microbatches));
}

const RankTraffic& busiest(const std::vector<RankTraffic>& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return a.intra_out() + a.inter_out() < b.intra_out() + b.inter_out();
  });
}

// Adds what the hosts of a layer agree on besides the transport's own calls.  They send a word of 8
// bytes to every peer for the number of pieces (low latency), and one in every piece for the number
// of micro-batches.
void add_agreements(All2AllBackend backend, const Deployment& d, Forecast& f) {
  constexpr double kWord = 8;
  const double words =
      (backend == All2AllBackend::kLowLatency ? 1 : 0) +
      (backend != All2AllBackend::kNone && d.microbatches > 1 ? static_cast<double>(f.pieces) : 0);
  const int on_node = d.topology().node_size(0);
  f.traffic.control_intra += kWord * words * (on_node - 1);
  f.traffic.control_inter += kWord * words * (d.ranks - on_node);
}

void add_piece(const Deployment& d,
               const Machine& machine,
               const RoutingModel& routing,
               const Piece& piece,
               Forecast& f) {
  const int parts = num_parts(f.backend, d, piece.tokens);
  const double tokens = static_cast<double>(piece.tokens) / parts;
  const PieceLoad load = piece_load(f.backend, d, routing, tokens);
  const StageTimes stages = stage_times(f.backend, d, machine, load);
  const auto times = static_cast<double>(piece.times);
  const double passes = times * parts;
  f.prepare += passes * stages.prepare();
  f.experts += passes * stages.experts;
  f.finalize += passes * stages.finalize();
  f.shared += passes * stages.shared;
  const Timeline line = piece_timeline(f.backend, d, stages, parts);
  for (double Timeline::*time :
       {&Timeline::total, &Timeline::travelled, &Timeline::hidden, &Timeline::waited}) {
    f.line.*time += times * line.*time;
  }
  const RankTraffic& most = busiest(load.traffic);
  add(f.traffic.dispatch, most.dispatch, passes);
  add(f.traffic.combine, most.combine, passes);
  f.traffic.control_intra += passes * most.control_intra;
  f.traffic.control_inter += passes * most.control_inter;
}

void add_ending(const Deployment& d, const Machine& machine, Forecast& f) {
  const EndingTimes times = ending_times(f.backend, d, machine);
  f.finalize += times.travel + times.compute;
  f.line.total += times.travel + times.compute;
  f.line.travelled += times.travel;
  f.line.waited += times.travel;
  add(f.traffic.combine, busiest(ending_traffic(f.backend, d)).combine, 1);
}

}  // namespace

Forecast forecast(All2AllBackend backend, const Deployment& d, const Machine& machine) {
  expect_valid(d);
  const RoutingModel routing(d.layer.routing);
  const std::vector<Piece> pieces = pieces_of(backend, d.own_tokens(backend));
  const double sources = d.num_sources(backend);
  Forecast f;
  f.backend = backend;
  f.support = backend_accepts(backend, d);
  f.is_beyond_kernels = d.device.is_cuda() && d.ranks > comm::kMaxCudaRanks &&
                        backend != All2AllBackend::kNone &&
                        backend != All2AllBackend::kAllGatherReduceScatter;
  const auto tokens = static_cast<double>(d.own_tokens(backend));
  f.router = router_us(d, machine, tokens);
  f.microbatches = num_parts(backend, d, pieces.front().tokens);
  for (const Piece& piece : pieces) {
    f.pieces += piece.times;
    add_piece(d, machine, routing, piece, f);
  }
  add_ending(d, machine, f);
  f.call = f.router + f.line.total - saved_by_router_us(backend, d, machine);
  add_agreements(backend, d, f);

  const auto first = static_cast<double>(pieces.front().tokens);
  const Copies copies = expected_copies(d, routing, first, sources);
  const bool travels = backend != All2AllBackend::kNone;
  for (int r = 1; r < d.ranks && travels; ++r) {
    f.copies += copies.rank_copies(0, r) / first;
  }
  for (int n = 1; n < copies.num_nodes && travels; ++n) {
    f.node_copies += copies.node_copies(0, n) / first;
  }
  if (backend == All2AllBackend::kAllGatherReduceScatter) {
    f.copies = d.ranks - 1;
    f.node_copies = d.ranks - d.topology().node_size(0);
  }
  const Copies whole = expected_copies(d, routing, tokens, sources);
  const int fullest = whole.fullest();
  f.rows = whole.received_selections(fullest);
  f.touched = expected_touched_experts(d, routing, fullest, tokens, sources);
  f.buffers = buffers(backend, d, copies);
  f.memory =
      machine.memory_gb.value * 1e9 / (machine.is_shared_by_node ? d.topology().node_size(0) : 1);
  f.fits = static_cast<double>(f.buffers.total(d.layers)) <= f.memory;
  return f;
}

std::vector<All2AllBackend> candidates(const Deployment& d) {
  std::vector<All2AllBackend> backends;
  if (d.dp() == 1) {
    backends.push_back(All2AllBackend::kNone);
  }
  if (d.ranks > 1) {
    backends.push_back(All2AllBackend::kAllGatherReduceScatter);
  }
  if (d.ranks > 1 && !d.shards_experts) {
    backends.insert(backends.end(), {All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency});
  }
  return backends;
}

std::vector<Forecast> forecast_all(const Deployment& d, const Machine& machine) {
  std::vector<Forecast> forecasts;
  for (const All2AllBackend backend : candidates(d)) {
    forecasts.push_back(forecast(backend, d, machine));
  }
  return forecasts;
}

const Forecast* fastest(const std::vector<Forecast>& forecasts) {
  const Forecast* best = nullptr;
  for (const Forecast& f : forecasts) {
    if (f.works() && (best == nullptr || f.call < best->call)) {
      best = &f;
    }
  }
  return best;
}

std::vector<SweepRow> sweep_tokens(const Deployment& deployment,
                                   const Machine& machine,
                                   int64_t last) {
  std::vector<SweepRow> rows;
  for (int64_t tokens = 1; tokens <= last; tokens *= 2) {
    Deployment d = deployment;
    d.tokens = tokens;
    rows.push_back({d, forecast_all(d, machine)});
  }
  return rows;
}

std::vector<SweepRow> sweep_ranks(const Deployment& deployment, const Machine& machine, int last) {
  expect_le(deployment.tp, last, "tp (of a sweep over ranks)");
  std::vector<SweepRow> rows;
  for (int ranks = std::max(2, deployment.tp); ranks <= last; ranks *= 2) {
    Deployment d = deployment;
    d.ranks = ranks;
    if (d.shards_experts &&
        (d.layer.intermediate % ranks != 0 || d.local_intermediate() % d.shard_block() != 0)) {
      if (rows.empty()) {
        expect_valid(d);  // says what is cut
      }
      break;
    }
    if (!d.shards_experts) {
      d.redundant_experts =
          std::max<int64_t>(d.redundant_experts, ranks - d.layer.routing.num_experts);
    }
    rows.push_back({d, forecast_all(d, machine)});
  }
  return rows;
}

std::optional<int64_t> crossover_tokens(Deployment d,
                                        const Machine& machine,
                                        All2AllBackend earlier,
                                        All2AllBackend later,
                                        int64_t low,
                                        int64_t high) {
  const auto later_wins = [&](int64_t tokens) {
    d.tokens = tokens;
    return forecast(later, d, machine).call < forecast(earlier, d, machine).call;
  };
  if (later_wins(low)) {
    return low;
  }
  if (!later_wins(high)) {
    return std::nullopt;
  }
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (later_wins(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace moebius::plan
