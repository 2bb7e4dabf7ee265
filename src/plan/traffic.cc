// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/traffic.h"

#include <cmath>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/cuda/window_layout.h"
#include "comm/routing/route.h"
#include "comm/routing/row_layout.h"
#include "experts/quantized_rows.h"
#include "layer/prepare_finalize/prepare_rows.h"
#include "layer/rows/token_slices.h"

namespace moebius::plan {

namespace {

constexpr double kWord = 8;
// Bytes before a row that returns between nodes (comm/low_latency/cpu/combine.cc).
constexpr double kReturnedRowHeader = 16;

// The flags of a message or returned row between GPUs of a node, each of which is a word.
double num_flags(const Deployment& d) {
  return std::ceil(static_cast<double>(d.layer.hidden) / comm::kPartElements);
}

// The bytes of a block of rows, in which every field is padded.  They are interpolated between
// whole numbers of rows.
double block_bytes(const RowLayout& layout, double rows) {
  const auto whole = static_cast<int64_t>(std::floor(rows));
  const auto low = static_cast<double>(layout.block_bytes(whole));
  const auto high = static_cast<double>(layout.block_bytes(whole + 1));
  return low + (rows - static_cast<double>(whole)) * (high - low);
}

class Counter {
 public:
  Counter(const Deployment& d, const Copies& copies)
      : deployment_(d),
        copies_(copies),
        topology_(d.topology()),
        row_(static_cast<double>(row_bytes(d))),
        node_of_(static_cast<size_t>(d.ranks)),
        ranks_(static_cast<size_t>(d.ranks)) {
    for (int n = 0; n < topology_.num_nodes(); ++n) {
      const auto node = static_cast<size_t>(n);
      for (int r = topology_.node_begin[node]; r < topology_.node_begin[node + 1]; ++r) {
        node_of_[static_cast<size_t>(r)] = n;
      }
    }
  }

  std::vector<RankTraffic> count(All2AllBackend backend, double tokens) {
    switch (backend) {
      case All2AllBackend::kNone:
        break;
      case All2AllBackend::kAllGatherReduceScatter:
        count_gather(tokens);
        break;
      case All2AllBackend::kHighThroughput:
        count_high_throughput();
        break;
      case All2AllBackend::kLowLatency:
        count_low_latency(tokens);
        break;
    }
    return std::move(ranks_);
  }

  std::vector<RankTraffic> count_ending(All2AllBackend backend) {
    if (backend == All2AllBackend::kNone) {  // src/layer/rows/token_slices.cc
      send_slices(0, deployment_.ranks, /*both_ways=*/true);
    } else {
      for (int first = 0; first < deployment_.ranks; first += deployment_.tp) {
        send_slices(first, deployment_.tp, /*both_ways=*/false);
      }
    }
    return std::move(ranks_);
  }

 private:
  // Ranks [first, first + num) send their slice of the tokens to each other.  With both_ways, each
  // first sends every other rank its rows of that rank's slice.
  void send_slices(int first, int num, bool both_ways) {
    const auto slice = [&](int i) {
      return static_cast<double>(token_slice(deployment_.tokens, num, i).size());
    };
    for (int s = 0; s < num; ++s) {
      for (int r = 0; r < num; ++r) {
        const double rows = slice(s) + (both_ways ? slice(r) : 0);
        send(&RankTraffic::combine, first + s, first + r, rows * row_);
      }
    }
  }

  bool on_gpus() const { return deployment_.device.is_cuda(); }
  bool same_node(int a, int b) const {
    return node_of_[static_cast<size_t>(a)] == node_of_[static_cast<size_t>(b)];
  }

  void send(Way RankTraffic::*way, int from, int to, double bytes, bool is_relay = false) {
    if (from == to) {
      return;
    }
    Way& out = ranks_[static_cast<size_t>(from)].*way;
    Way& in = ranks_[static_cast<size_t>(to)].*way;
    if (!same_node(from, to)) {
      out.inter_out += bytes;
      in.inter_in += bytes;
      return;
    }
    out.intra_out += bytes;
    in.intra_in += bytes;
    out.relay_out += is_relay ? bytes : 0;
    in.relay_in += is_relay ? bytes : 0;
  }

  // Every rank sends so many bytes to every other.
  void add_control(double bytes) {
    for (int r = 0; r < deployment_.ranks; ++r) {
      const int on_node = topology_.node_size(node_of_[static_cast<size_t>(r)]);
      ranks_[static_cast<size_t>(r)].control_intra += bytes * (on_node - 1);
      ranks_[static_cast<size_t>(r)].control_inter += bytes * (deployment_.ranks - on_node);
    }
  }

  // Rows, ids and weights go to every rank, and sums come back.
  void count_gather(double tokens) {
    const double row = dispatch_row_bytes(All2AllBackend::kAllGatherReduceScatter, deployment_);
    for (int s = 0; s < deployment_.ranks; ++s) {
      for (int r = 0; r < deployment_.ranks; ++r) {
        send(&RankTraffic::dispatch, s, r, tokens * row);
        send(&RankTraffic::combine, s, r, tokens * row_);
      }
    }
    add_control(kWord);  // the numbers of tokens
  }

  void count_high_throughput() {
    const RowLayout there = high_throughput_layout(deployment_);
    const auto row = static_cast<double>(there.row_bytes());
    const RowLayout back({row_bytes(deployment_)});
    for (int s = 0; s < deployment_.ranks; ++s) {
      const int own = node_of_[static_cast<size_t>(s)];
      for (int n = 0; n < topology_.num_nodes(); ++n) {
        const int gate = n == own ? s : gateway(topology_, s, n);
        if (n != own) {
          send(&RankTraffic::dispatch, s, gate, block_bytes(there, copies_.node_copies(s, n)));
          send(&RankTraffic::combine, gate, s, block_bytes(back, copies_.node_copies(s, n)));
        }
        const auto node = static_cast<size_t>(n);
        for (int r = topology_.node_begin[node]; r < topology_.node_begin[node + 1]; ++r) {
          const double copies = copies_.rank_copies(s, r);
          send(&RankTraffic::dispatch, gate, r, copies * row, n != own);
          send(&RankTraffic::combine, r, gate, copies * row_, n != own);
        }
      }
    }
    if (!on_gpus() || topology_.num_nodes() > 1) {  // notices: {row, bank, size, copies, copies}
      add_control(kWord * (3 + deployment_.ranks + topology_.num_nodes()));
    }
  }

  void count_low_latency(double tokens) {
    const LowLatencyOptions options = low_latency_options(deployment_);
    const LowLatencyLayout layout = LowLatencyLayout::make(options, deployment_.ranks);
    const bool sums_ranks = options.sum == LowLatencySum::kRanks;
    const bool one_node = topology_.num_nodes() == 1;
    const bool by_messages = on_gpus() && !one_node;  // even within nodes
    const double row = dispatch_row_bytes(All2AllBackend::kLowLatency, deployment_);
    const double flags = on_gpus() && one_node ? kWord * num_flags(deployment_) : 0;
    for (int s = 0; s < deployment_.ranks; ++s) {
      for (int r = 0; r < deployment_.ranks; ++r) {
        const bool by_message = by_messages || !same_node(s, r);
        send(&RankTraffic::dispatch, s, r,
             by_message ? static_cast<double>(
                              layout.mailbox_bytes(low_latency_row(deployment_), layout.max_tokens))
                        : copies_.rank_copies(s, r) * row);
        const double selections = copies_.rank_selections(s, r);
        send(&RankTraffic::combine, r, s,
             (sums_ranks ? copies_.rank_copies(s, r) : selections) *
                 (row_ + (by_message ? kReturnedRowHeader : flags)));
        // Weights go first: on GPUs a word for each selection, on a CPU all weights to every rank.
        if (sums_ranks) {
          send(&RankTraffic::combine, s, r,
               on_gpus() ? kWord * selections
                         : tokens * static_cast<double>(options.topk) * sizeof(float));
        }
      }
    }
  }

  const Deployment& deployment_;
  const Copies& copies_;
  Topology topology_;
  double row_;  // bytes
  std::vector<int> node_of_;
  std::vector<RankTraffic> ranks_;
};

// The values and scales of a row that travels.  One static scale of all rows stays behind.
LowLatencyRow row_on_its_way(All2AllBackend backend, const Deployment& d) {
  if (!travels_quantized(backend, d.formats)) {
    return {row_bytes(d), 0};
  }
  const QuantizeSpec& spec = *d.formats.activations;
  const int64_t values = d.layer.hidden * bits(storage_dtype(spec.format)) / 8;
  return {values, has_one_static_scale(spec, d.formats.quant.a1) ? 0 : coded_row_bytes(d) - values};
}

}  // namespace

std::vector<RankTraffic> traffic(All2AllBackend backend,
                                 const Deployment& deployment,
                                 const Copies& copies,
                                 double tokens) {
  return Counter(deployment, copies).count(backend, tokens);
}

std::vector<RankTraffic> ending_traffic(All2AllBackend backend, const Deployment& deployment) {
  return Counter(deployment, Copies()).count_ending(backend);
}

std::vector<int64_t> high_throughput_payloads(const Deployment& d) {
  const LowLatencyRow row = row_on_its_way(All2AllBackend::kHighThroughput, d);
  return row.scale_bytes == 0 ? std::vector{row.value_bytes}
                              : std::vector{row.value_bytes, row.scale_bytes};
}

RowLayout high_throughput_layout(const Deployment& d) {
  return {high_throughput_payloads(d),
          {.ids = 4 * d.layer.routing.topk, .weights = 4 * d.layer.routing.topk}};
}

LowLatencyRow low_latency_row(const Deployment& d) {
  return row_on_its_way(All2AllBackend::kLowLatency, d);
}

int64_t low_latency_tokens() {
  return MoeConfig().max_num_tokens;
}

LowLatencyOptions low_latency_options(const Deployment& d) {
  return {.max_tokens = low_latency_tokens(),
          .hidden = d.layer.hidden,
          .topk = d.layer.routing.topk,
          .in_dtype = d.layer.dtype,
          .sum = d.low_latency_sum};
}

bool travels_quantized(All2AllBackend backend, const Formats& formats) {
  if (!formats.activations) {
    return false;
  }
  if (backend == All2AllBackend::kNone) {  // nothing travels
    return takes_codes(formats.activations->format);
  }
  return quantizes_by_row(*formats.activations, formats.quant.a1);
}

double dispatch_row_bytes(All2AllBackend backend, const Deployment& d) {
  const int64_t topk = d.layer.routing.topk;
  const LowLatencyRow row = row_on_its_way(backend, d);
  const auto payload = static_cast<double>(row.value_bytes + row.scale_bytes);
  switch (backend) {
    case All2AllBackend::kNone:
      return 0;
    case All2AllBackend::kAllGatherReduceScatter:
      return payload + static_cast<double>(8 * topk);
    case All2AllBackend::kHighThroughput:
      return static_cast<double>(high_throughput_layout(d).row_bytes());
    case All2AllBackend::kLowLatency:
      break;
  }
  if (d.device.is_cuda()) {  // the words of the header, and a flag per part
    return payload + kWord * (static_cast<double>(topk + 2) + num_flags(d));
  }
  return static_cast<double>(
      LowLatencyLayout::make(low_latency_options(d), 1).message_bytes(low_latency_row(d)));
}

}  // namespace moebius::plan
