// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/stages.h"

#include <algorithm>
#include <cmath>

#include "layer/run_experts.h"
#include "moebius/modular_kernel.h"
#include "plan/gemm.h"
#include "plan/measured.h"

namespace moebius::plan {

namespace {

// The number of collective calls of the hosts in one direction.  High throughput exchanges counts
// and the end, and between nodes also the message.  Low latency exchanges messages between nodes,
// and on a CPU the number of pieces; hosts of GPUs run ahead.  All-gather exchanges the number of
// tokens, rows, ids, weights and scales, and makes one call for sums.
int num_exchanges(All2AllBackend backend, const Deployment& d, bool is_dispatch) {
  const bool many_nodes = d.topology().num_nodes() > 1;
  switch (backend) {
    case All2AllBackend::kNone:
      return 0;
    case All2AllBackend::kAllGatherReduceScatter:
      return is_dispatch ? (travels_quantized(backend, d.formats) ? 5 : 4) : 1;
    case All2AllBackend::kHighThroughput:
      return many_nodes ? 3 : d.device.is_cuda() ? 0 : 2;
    case All2AllBackend::kLowLatency:
      return many_nodes || (is_dispatch && !d.device.is_cuda()) ? 1 : 0;
  }
  return 0;
}

class Stages {
 public:
  Stages(All2AllBackend backend, const Deployment& d, const Machine& m, const PieceLoad& load)
      : backend_(backend),
        deployment_(d),
        machine_(m),
        load_(load),
        topology_(d.topology()),
        // The number of ranks that compute side by side on one processor.
        sharing_(m.is_shared_by_node ? topology_.node_size(0) : 1),
        row_(static_cast<double>(row_bytes(d))),
        coded_row_(static_cast<double>(coded_row_bytes(d))) {}

  StageTimes times() const {
    StageTimes t;
    t.prepare_before = prepare_before();
    t.there = travel(&RankTraffic::dispatch, true);
    t.prepare_after = prepare_after();
    t.experts = routed_experts();
    t.finalize_before = finalize_before();
    t.back = travel(&RankTraffic::combine, false);
    t.back_start = fixed_us(false);
    t.parts_back = parts_back();
    t.last_gemm = t.parts_back > 1 ? last_gemm(t.experts) : 0;
    t.finalize_after = finalize_after();
    if (deployment_.layer.shared_intermediate > 0) {
      const double sum = 3 * load_.tokens * row_;  // adds the results to the output
      t.shared = experts(load_.tokens, 1, deployment_.layer.shared_intermediate, sum);
    }
    return t;
  }

  // Exchanges follow each other: the second one of a sum gathers what the first one has summed.
  EndingTimes ending() const {
    EndingTimes times;
    const bool sums = backend_ == All2AllBackend::kNone;
    const int num = sums ? deployment_.ranks : deployment_.tp;
    if (num == 1) {
      return times;
    }
    const std::vector<RankTraffic> traffic = ending_traffic(backend_, deployment_);
    const bool crosses = std::any_of(traffic.begin(), traffic.end(), [](const RankTraffic& rank) {
      return rank.combine.inter_out > 0;
    });
    times.travel =
        longest(traffic, &RankTraffic::combine) +
        (sums ? 2 : 1) * (machine_.link_us.value + machine_.peer_us.value * (num - 1) +
                          machine_.exchange_us.value + (crosses ? machine_.node_us.value : 0));
    const int64_t rows = (deployment_.tokens + num - 1) / num;
    const double slice = static_cast<double>(rows) * row_;
    times.compute =
        copy_us((sums ? (num + 1) * slice : 0) + (on_gpu() ? 0 : 2 * (num - 1) * slice));
    return times;
  }

 private:
  bool on_gpu() const { return deployment_.device.is_cuda(); }
  double topk() const { return static_cast<double>(deployment_.layer.routing.topk); }
  double us_of(double bytes, const Given& gb_per_s) const {
    return bytes * sharing_ / gb_per_s.value * 1e-3;
  }
  double copy_us(double bytes) const { return us_of(bytes, machine_.copy_gb_per_s); }
  bool quantizes() const { return deployment_.formats.activations.has_value(); }
  bool quantizes_first() const {
    return quantizes() && travels_quantized(backend_, deployment_.formats);
  }
  // The copies of this rank's tokens, which its own threads store on a CPU.
  double own_copies() const {
    double copies = 0;
    for (int r = 0; r < deployment_.ranks; ++r) {
      copies += load_.copies.rank_copies(0, r);
    }
    return copies;
  }

  double prepare_before() const {
    // On GPUs low latency quantizes in its own kernel.
    const bool casts_in_flight = backend_ == All2AllBackend::kLowLatency && on_gpu();
    double bytes = quantizes_first() && !casts_in_flight ? load_.tokens * (row_ + coded_row_) : 0;
    if (!on_gpu()) {  // threads store rows in their places
      const double row = dispatch_row_bytes(backend_, deployment_);
      switch (backend_) {
        case All2AllBackend::kNone:
          break;
        case All2AllBackend::kAllGatherReduceScatter:
          bytes += 2 * load_.tokens * deployment_.ranks * row;
          break;
        case All2AllBackend::kHighThroughput:
        case All2AllBackend::kLowLatency:
          bytes += load_.tokens * row + own_copies() * row;
          break;
      }
    }
    return copy_us(bytes);
  }

  double prepare_after() const {
    double bytes = 0;
    const bool is_batched = backend_ == All2AllBackend::kLowLatency;
    if (is_batched && !on_gpu()) {  // rows are copied from mailboxes to the experts
      bytes += 2 * load_.selections * (quantizes_first() ? coded_row_ : row_);
    }
    if (quantizes() && !quantizes_first()) {
      bytes += (is_batched ? load_.selections : load_.rows) * (row_ + coded_row_);
    }
    return copy_us(bytes);
  }

  // The bytes that are read and written around the products of the routed experts.  On a CPU they
  // stay in caches, and their time is part of that of products.
  double routed_moves() const {
    if (!on_gpu()) {
      return 0;
    }
    const LayerShape& l = deployment_.layer;
    const auto element = static_cast<double>(bits(l.dtype)) / 8;
    const int64_t inner = deployment_.local_intermediate();
    const Gemm1Result stored = gemm1_result(deployment_, 1, inner, load_.selections / touched());
    const bool quantizes_later =
        stored == Gemm1Result::kActivated && deployment_.formats.activations.has_value();
    double activation = 0;
    if (stored == Gemm1Result::kProducts || quantizes_later) {
      activation =
          static_cast<double>(quantizes_later ? inner : l.w1_rows(inner)) * element +
          static_cast<double>(matrix_bytes(deployment_.formats.activations, l.dtype, 1, inner) +
                              widened_bytes(deployment_, inner, inner));
    }
    if (backend_ == All2AllBackend::kLowLatency) {  // rows are in place, and combine sums them
      return load_.selections * activation;
    }
    double gather =
        2 * (coded_row_ + static_cast<double>(widened_bytes(deployment_, inner, l.hidden)));
    if (is_of_tensor_maps(gemm_kind(deployment_, inner, load_.selections / touched())) &&
        !is_decoded_ahead(load_.selections, touched(), inner)) {
      gather *= kFetched;
    }
    return load_.selections * (gather + activation + row_) + load_.rows * row_;
  }

  double touched() const { return std::max(load_.touched, 1.0); }

  // GEMM1 may fetch rows from where they lie, which slows it.  That takes this share of the time of
  // gathering them: 0.4 to 0.75 in docs/performance/gpu_experts.md.
  static constexpr double kFetched = 0.6;
  // Whether sm90_grouped_gemm multiplies.
  static bool is_of_tensor_maps(GemmKind kind) {
    return kind == GemmKind::kBF16 || kind == GemmKind::kFp8 || kind == GemmKind::kInt8 ||
           kind == GemmKind::kDecoded;
  }

  double products_us(double flops, GemmKind kind) const {
    constexpr Given Machine::*kRates[] = {// by GemmKind
                                          &Machine::f32_tflops,     &Machine::bf16_tflops,
                                          &Machine::fp8_tflops,     &Machine::int8_tflops,
                                          &Machine::decoded_tflops, &Machine::registers_tflops,
                                          &Machine::coded_tflops};
    const Given& rate = machine_.*kRates[static_cast<size_t>(kind)];
    return flops * sharing_ / rate.value * 1e-6;
  }

  // Whether the GEMMs decode weights themselves.  Then they do not fetch rows.
  bool is_decoded_ahead(double rows, double touched, int64_t intermediate) const {
    return on_gpu() && decodes_ahead(deployment_, static_cast<int64_t>(std::ceil(touched)),
                                     intermediate, rows / touched);
  }

  // The time to decode weights into memory: codes are read, bf16 is written, and read again by the
  // GEMM.  Experts are decoded in groups, as many as there is room for, so that little of it
  // overlaps with products.  What is decoded while others are multiplied slows that by this share
  // of its time: 0.4 to 0.55 in docs/performance/gpu_experts.md.
  static constexpr double kDecodedAhead = 0.45;
  double decoding_us(double touched, int64_t intermediate) const {
    const auto codes = static_cast<double>(expert_bytes(deployment_, intermediate));
    // An element has two FLOPs and two bytes.
    const auto decoded = static_cast<double>(expert_flops_per_row(deployment_.layer, intermediate));
    return copy_us(touched * (codes + 2 * decoded));
  }

  double experts(double rows, double touched, int64_t intermediate, double moves) const {
    if (rows <= 0 || touched <= 0) {
      return machine_.experts_us.value;
    }
    const GemmKind kind = gemm_kind(deployment_, intermediate, rows / touched);
    const double tile = machine_.row_tile.value;
    const double of_expert = rows / touched;
    const double computed = kind == GemmKind::kRegisters
                                ? touched * rows_in_registers(deployment_, intermediate, of_expert)
                            : tile > 1 ? touched * std::ceil(of_expert / tile) * tile
                                       : rows;
    const double products = products_us(
        computed * static_cast<double>(expert_flops_per_row(deployment_.layer, intermediate)),
        kind);
    const double rest = machine_.experts_us.value + copy_us(moves);
    if (on_gpu() && kind == GemmKind::kDecoded) {
      const double shown = is_decoded_ahead(rows, touched, intermediate) ? kDecodedAhead : 1;
      return rest + products + shown * decoding_us(touched, intermediate);
    }
    const double weights =
        us_of(touched * static_cast<double>(expert_bytes(deployment_, intermediate)),
              machine_.weight_gb_per_s);
    return rest + std::max(products, weights) +
           (1 - machine_.read_overlap.value) * std::min(products, weights);
  }

  double routed_experts() const {
    const int64_t inner = deployment_.local_intermediate();
    const double us = experts(load_.selections, load_.touched, inner, routed_moves());
    if (!machine_.experts_are_measured || load_.selections <= 0 || load_.touched <= 0) {
      return us;
    }
    // A machine of a file has other figures, which the measured cases do not stand for.
    static const Machine measured_on = find_machine("h200");
    return us *
           measured_correction(deployment_, inner, load_.selections / load_.touched, measured_on);
  }

  // ModularKernel decides in the same way, for experts whose second GEMM can be cut.
  int parts_back() const {
    if (backend_ != All2AllBackend::kHighThroughput || !on_gpu() || topology_.num_nodes() > 1) {
      return 1;
    }
    const GemmKind kind =
        gemm_kind(deployment_, deployment_.local_intermediate(), load_.selections / touched());
    const bool can = is_of_tensor_maps(kind) && kind != GemmKind::kDecoded;
    const auto rows = static_cast<int64_t>(load_.rows);
    const LayerShape& l = deployment_.layer;
    return can && rows <= default_chunk_tokens()
               ? num_combine_parts(0, rows, l.hidden, l.dtype, deployment_.ranks)
               : 1;
  }

  double last_gemm(double experts) const {
    const int64_t inner = deployment_.local_intermediate();
    const auto share =
        static_cast<double>(inner) / static_cast<double>(inner + deployment_.layer.w1_rows(inner));
    return (experts - machine_.experts_us.value - copy_us(routed_moves())) * share;
  }

  // Summing the rows of a token before they go back.  On GPUs the experts do it.  On a CPU all K
  // places of every received row are cleared or written, and then read.
  double finalize_before() const {
    if (backend_ == All2AllBackend::kLowLatency) {
      const double stored = sums_ranks() ? load_.rows : load_.selections;
      return on_gpu() ? 0 : copy_us((load_.selections + stored) * row_);
    }
    return on_gpu() ? 0 : copy_us(((2 * topk() + 1) * load_.rows - load_.selections) * row_);
  }

  double finalize_after() const {
    double rows = 0;
    switch (backend_) {
      case All2AllBackend::kNone:
        break;
      case All2AllBackend::kAllGatherReduceScatter:
        rows = (deployment_.ranks + 1) * load_.tokens;
        break;
      case All2AllBackend::kHighThroughput:  // on GPUs its kernel sums, as does that of low latency
        rows = on_gpu() ? 0 : own_copies() + load_.tokens;
        break;
      case All2AllBackend::kLowLatency:
        rows = on_gpu()       ? 0
               : sums_ranks() ? own_copies() + load_.tokens
                              : (topk() + 1) * load_.tokens;
        break;
    }
    return copy_us(rows * row_);
  }

  bool sums_ranks() const { return deployment_.low_latency_sum == LowLatencySum::kRanks; }

  static double on_link(double bytes, const Given& gb_per_s) {
    return gb_per_s.value > 0 ? bytes / gb_per_s.value * 1e-3 : 0;
  }

  // The time of the busiest rank, which sends and receives at the same time.
  double travel(Way RankTraffic::*way, bool is_dispatch) const {
    if (backend_ == All2AllBackend::kNone) {
      return 0;
    }
    return longest(load_.traffic, way) + fixed_us(is_dispatch);
  }

  double longest(const std::vector<RankTraffic>& traffic, Way RankTraffic::*way) const {
    double us = 0;
    for (const RankTraffic& rank : traffic) {
      const Way& w = rank.*way;
      us = std::max({us, one_way(w.intra_out, w.relay_out, w.inter_out),
                     one_way(w.intra_in, w.relay_in, w.inter_in)});
    }
    return us;
  }

  double one_way(double intra, double relay, double inter) const {
    const double within = on_link(intra - relay, machine_.link_gb_per_s);
    const double relayed = on_link(relay, machine_.link_gb_per_s);
    const double between = on_link(inter, machine_.node_gb_per_s);
    return std::max(within, between) + relayed;
  }

  double fixed_us(bool is_dispatch) const {
    const Machine& m = machine_;
    double us = m.link_us.value + m.peer_us.value * (deployment_.ranks - 1) +
                m.exchange_us.value * num_exchanges(backend_, deployment_, is_dispatch);
    if (topology_.num_nodes() > 1) {
      us += m.node_us.value;
    }
    if (backend_ == All2AllBackend::kHighThroughput) {
      us += is_dispatch ? m.ht_dispatch_us.value : m.ht_combine_us.value;
    } else if (backend_ == All2AllBackend::kLowLatency) {
      us += is_dispatch ? m.ll_dispatch_us.value : m.ll_combine_us.value;
    }
    return us;
  }

  All2AllBackend backend_;
  const Deployment& deployment_;
  const Machine& machine_;
  const PieceLoad& load_;
  Topology topology_;
  double sharing_;
  double row_;
  double coded_row_;
};

}  // namespace

PieceLoad piece_load(All2AllBackend backend,
                     const Deployment& d,
                     const RoutingModel& routing,
                     double tokens) {
  PieceLoad load;
  load.tokens = tokens;
  const double sources = d.num_sources(backend);
  load.copies = expected_copies(d, routing, tokens, sources);
  load.traffic = traffic(backend, d, load.copies, tokens);
  const bool gathers = backend == All2AllBackend::kAllGatherReduceScatter;
  const int fullest = load.copies.fullest();
  load.selections = load.copies.received_selections(fullest);
  for (int rank = 0; rank < d.ranks; ++rank) {
    load.rows = std::max(load.rows, load.copies.received(rank));
  }
  load.rows = gathers || backend == All2AllBackend::kNone ? tokens * sources : load.rows;
  load.touched = expected_touched_experts(d, routing, fullest, tokens, sources);
  return load;
}

StageTimes stage_times(All2AllBackend backend,
                       const Deployment& deployment,
                       const Machine& machine,
                       const PieceLoad& load) {
  return Stages(backend, deployment, machine, load).times();
}

EndingTimes ending_times(All2AllBackend backend, const Deployment& d, const Machine& machine) {
  return Stages(backend, d, machine, PieceLoad()).ending();
}

MicrobatchTimes StageTimes::part(bool shares_early, bool in_parts) const {
  // Measured on H200s: GEMMs run on the SMs that combine leaves them, and share the memory
  // bandwidth.
  constexpr double kBesideCombine = 1.3;
  return {.prepare = prepare_before,
          .there = there,
          .shared = shared,
          .shares_early = shares_early,
          .before_experts = prepare_after,
          .experts = experts,
          .after_experts = finalize_before,
          .back = back,
          .parts_back = in_parts ? parts_back : 1,
          .last_gemm = in_parts ? last_gemm : 0,
          .beside = kBesideCombine,
          .back_start = back_start,
          .receive = finalize_after};
}

double router_us(const Deployment& d, const Machine& m, double tokens) {
  const int sharing = m.is_shared_by_node ? d.topology().node_size(0) : 1;
  const auto gate = static_cast<double>(d.layer.hidden * d.layer.routing.num_experts);
  const double products = tokens * 2 * gate * sharing / m.router_tflops.value * 1e-6;
  const double depth = static_cast<double>(d.layer.hidden) * m.router_depth_ns.value * 1e-3;
  const double weights = gate * bits(d.layer.dtype) / 8 * sharing / m.weight_gb_per_s.value * 1e-3;
  return std::max({products, depth, weights}) + m.router_us.value;
}

double saved_by_router_us(All2AllBackend backend, const Deployment& d, const Machine& m) {
  constexpr double kOrderUs = 4;           // a kernel less
  constexpr int64_t kOrderedTokens = 128;  // of top-8, in the kernel that chooses experts
  if (backend != All2AllBackend::kNone || d.ranks > 1 || d.device.is_cpu() ||
      !m.experts_are_measured) {
    return 0;
  }
  const double selections = static_cast<double>(d.tokens * d.layer.routing.topk);
  const double rows = selections / static_cast<double>(d.layer.routing.num_experts);
  return (d.tokens <= kOrderedTokens ? kOrderUs : 0) +
         static_cast<double>(fetched_ahead(d, rows)) / m.weight_gb_per_s.value * 1e-3;
}

}  // namespace moebius::plan
