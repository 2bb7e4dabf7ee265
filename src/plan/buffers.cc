// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/buffers.h"

#include <algorithm>
#include <cmath>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/cuda/window_layout.h"
#include "experts/cuda/rows/coded_rows.h"
#include "experts/expected_rows.h"
#include "layer/run_experts.h"
#include "plan/gemm.h"
#include "plan/traffic.h"

namespace moebius::plan {

namespace {

int64_t most_places(const Deployment& d) {
  return d.places_of(0).size();  // the first ranks may own one more than the others
}

int64_t weight_bytes(const Deployment& d) {
  const int64_t router =
      matrix_bytes(std::nullopt, d.layer.dtype, d.layer.routing.num_experts, d.layer.hidden);
  const int64_t shared =
      d.layer.shared_intermediate > 0 ? expert_bytes(d, d.layer.shared_intermediate) : 0;
  return most_places(d) * expert_bytes(d, d.local_intermediate()) + shared + router;
}

int64_t most_rows(const Deployment& d, const Copies& copies) {
  double most = 0;
  for (int rank = 0; rank < d.ranks; ++rank) {
    most = std::max(most, copies.received(rank));
  }
  return static_cast<int64_t>(std::ceil(most));
}

// The workspace of MoeLayer for its own tokens where the output has the layer's dtype: logits, ids,
// weights, results of shared experts and, where ranks sum their outputs, its own output and the
// sum.
int64_t layer_workspace(All2AllBackend backend, const Deployment& d) {
  const LayerShape& l = d.layer;
  const bool sums = backend == All2AllBackend::kNone && d.ranks > 1;
  const bool shares = l.shared_intermediate > 0;
  const int64_t rows = (shares ? 1 : 0) + (sums ? 2 : 0);
  return d.own_tokens(backend) *
         (4 * l.routing.num_experts + 8 * l.routing.topk + rows * row_bytes(d));
}

int64_t slots_of(const Deployment& d, int64_t rows, bool is_batched) {
  return rows * (is_batched ? most_places(d) : d.layer.routing.topk);
}

// The workspace of experts/cuda/call_buffers.cc for `rows` rows (per expert if batched): the result
// of GEMM1 where it is stored, the activated rows, and decoded weights.  On a CPU the operand and
// the result of GEMM1 stay within a task.
int64_t inner_workspace(const Deployment& d, int64_t rows, bool is_batched) {
  const LayerShape& l = d.layer;
  const int64_t inner = d.local_intermediate();
  const int64_t places = most_places(d);
  const ExpectedRows expected{l.routing.num_experts, places, l.routing.topk, is_batched};
  const double mean = static_cast<double>(expected.of(rows)) / static_cast<double>(places);
  const int64_t gemm1 = l.w1_rows(inner) * bits(l.dtype) / 8;
  // Batched rows always have room for the result of GEMM1, since it may be stored.
  const bool is_cuda = d.device.is_cuda();
  const Gemm1Result result = gemm1_result(d, places, inner, mean);
  const bool stores = is_cuda && (is_batched || result == Gemm1Result::kProducts);
  // With fewer rows it is stored, and weights are not decoded.
  const int64_t decoded_from = is_cuda ? decodes_from(d, places, inner) : 0;
  const bool fewer_store = !stores && decoded_from > 0 && expected.of(rows) >= decoded_from;
  const int64_t fewer = fewer_store ? expected.most_below(decoded_from) : 0;
  const int64_t slots = slots_of(d, rows, is_batched);
  const int64_t hidden =
      matrix_bytes(d.formats.activations, l.dtype, 1, inner) + widened_bytes(d, inner, inner);
  // Batched rows that GEMM1 activates lie in the room of its result if one kernel codes them.
  const bool stores_activated = is_cuda && d.formats.activations &&
                                (!cuda::activates_to_codes(*d.formats.activations, inner) ||
                                 (!is_batched && result == Gemm1Result::kActivated));
  const int64_t activated = stores_activated ? matrix_bytes(std::nullopt, l.dtype, 1, inner) : 0;
  const int64_t shared =
      std::max(decoded_bytes(d, places, inner, mean), slots_of(d, fewer, is_batched) * gemm1);
  return slots * ((stores ? gemm1 : 0) + activated + hidden) + shared;
}

// The workspace of the standard format for `rows` received rows, `computed` of which are computed
// at a time.  It adds the operand of GEMM1 or the rows of GEMM2, which share room, and the output.
int64_t experts_workspace(const Deployment& d, int64_t rows, int64_t computed) {
  return inner_workspace(d, computed, false) + (slots_of(d, computed, false) + rows) * row_bytes(d);
}

// GEMM1 reads batched rows where they arrived, and GEMM2 writes there.  GPUs keep room to quantize
// them nonetheless.
int64_t batched_workspace(const Deployment& d, int64_t rows) {
  const bool encodes = d.device.is_cuda() && d.formats.activations;
  const int64_t operand =
      encodes ? coded_row_bytes(d) + widened_bytes(d, d.local_intermediate(), d.layer.hidden) : 0;
  return inner_workspace(d, rows, true) + slots_of(d, rows, true) * (operand + row_bytes(d));
}

// The bytes of one received row, its tag and its token.  CPUs keep room for rows of either form.
int64_t output_row_bytes(const Deployment& d) {
  constexpr int64_t kWords = 8;
  const LowLatencyRow row = low_latency_row(d);
  return kWords + (d.device.is_cuda() ? row.value_bytes : row_bytes(d)) + row.scale_bytes;
}

// The rows for the experts where prepare makes new ones, because it quantizes or gathers rows.
int64_t prepare_workspace(All2AllBackend backend, const Deployment& d, int64_t rows) {
  const bool gathers = backend == All2AllBackend::kAllGatherReduceScatter;
  const bool quantizes = d.formats.activations && !travels_quantized(backend, d.formats);
  if (!gathers && !quantizes) {
    return 0;
  }
  const auto& format = gathers && !d.formats.activations ? std::nullopt : d.formats.activations;
  return rows * matrix_bytes(format, d.layer.dtype, 1, d.layer.hidden);
}

}  // namespace

// Why not LowLatency::size_hint: it knows GPUs only in a build with CUDA.
int64_t low_latency_window_bytes(const Deployment& d) {
  const LayerShape& l = d.layer;
  if (d.device.is_cuda() && d.topology().num_nodes() == 1) {
    return comm::CudaLowLatencyLayout::make(low_latency_tokens(), l.routing.topk, l.hidden,
                                            bits(l.dtype) / 8, d.ranks, most_places(d))
        .bytes();
  }
  return LowLatencyLayout::make(low_latency_options(d), d.ranks).bytes();
}

HighThroughputNeeds high_throughput_needs(const Deployment& d, int64_t rows, int64_t num_results) {
  const int64_t topk = d.layer.routing.topk;
  HighThroughputNeeds needs;
  needs.payload_row_bytes = high_throughput_payloads(d);
  needs.topk = topk;
  needs.rows = rows;
  needs.num_results = num_results;
  needs.combine_row_bytes = row_bytes(d);
  needs.combine_copies =
      d.own_tokens(All2AllBackend::kHighThroughput) * std::min<int64_t>(topk, d.ranks - 1);
  return needs;
}

Buffers buffers(All2AllBackend backend, const Deployment& d, const Copies& copies) {
  Buffers b;
  b.weights = weight_bytes(d);
  const int64_t topk = d.layer.routing.topk;
  const int64_t rows = most_rows(d, copies);
  const int64_t own = d.own_tokens(backend);
  const int64_t chunk = default_chunk_tokens();
  int64_t parts = d.microbatches;
  switch (backend) {
    case All2AllBackend::kNone: {
      b.workspaces =
          experts_workspace(d, own, std::min(own, chunk)) + prepare_workspace(backend, d, own);
      break;
    }
    case All2AllBackend::kAllGatherReduceScatter: {
      const int64_t all = d.all_tokens();
      b.workspaces = prepare_workspace(backend, d, all) + 8 * topk * all +
                     experts_workspace(d, all, std::min(all, chunk)) + all * row_bytes(d);
      break;
    }
    case All2AllBackend::kHighThroughput: {
      b.windows =
          HighThroughput::size_hint(high_throughput_needs(d, (rows + parts - 1) / parts, parts),
                                    ExpertPlacement::linear(d.num_places(), d.ranks), d.device);
      b.workspaces =
          experts_workspace(d, rows, std::min(rows, chunk)) + prepare_workspace(backend, d, rows);
      break;
    }
    case All2AllBackend::kLowLatency: {
      const int64_t rows_of_expert = low_latency_tokens() * d.ranks;
      const int64_t room = slots_of(d, rows_of_expert, true);
      parts = std::min<int64_t>(parts, 2);
      b.windows = low_latency_window_bytes(d);
      b.outputs = 2 * room * output_row_bytes(d);
      b.workspaces =
          parts * (batched_workspace(d, rows_of_expert) + prepare_workspace(backend, d, room));
      break;
    }
  }
  b.workspaces += layer_workspace(backend, d);
  return b;
}

}  // namespace moebius::plan
