// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/buffers.h"

#include <algorithm>
#include <cmath>

#include "comm/high_throughput/bank.h"
#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/cuda/window_layout.h"
#include "experts/expected_rows.h"
#include "layer/run_experts.h"
#include "plan/gemm.h"
#include "plan/traffic.h"

namespace moebius::plan {

namespace {

int64_t most_places(const Deployment& d) {
  return d.places_of(0).size();  // the first ranks own one more
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

// What MoeLayer keeps of its own tokens where the output has the layer's dtype: logits, ids,
// weights, the shared experts' results, and where ranks sum outputs, their own and the sum.
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

// GEMM1's result, where it is stored, and what it is activated to, for room for as many rows
// (batched: per expert), and decoded weights: experts/cuda/experts.cc.  On a CPU the operand
// and GEMM1's result stay within a task.
int64_t inner_workspace(const Deployment& d, int64_t rows, bool is_batched) {
  const LayerShape& l = d.layer;
  const int64_t inner = d.local_intermediate();
  const int64_t places = most_places(d);
  const ExpectedRows expected{l.routing.num_experts, places, l.routing.topk, is_batched};
  const double mean = static_cast<double>(expected.of(rows)) / static_cast<double>(places);
  const int64_t gemm1 = l.w1_rows(inner) * bits(l.dtype) / 8;
  // Of batched rows it may have to be.
  const bool is_cuda = d.device.is_cuda();
  const bool stores = is_cuda && (is_batched || !activates_in_gemm1(d, inner, mean));
  const bool fewer_store = is_cuda && !stores && !activates_in_gemm1(d, inner, 0);
  const int64_t fewer = fewer_store ? expected.most_below(decodes_from(d, places, inner)) : 0;
  const int64_t slots = slots_of(d, rows, is_batched);
  const int64_t hidden =
      matrix_bytes(d.formats.activations, l.dtype, 1, inner) + widened_bytes(d, inner, inner);
  const int64_t shared =
      std::max(decoded_bytes(d, places, inner, mean), slots_of(d, fewer, is_batched) * gemm1);
  return slots * ((stores ? gemm1 : 0) + hidden) + shared;
}

// And GEMM1's operand or GEMM2's rows, and the output, for `rows` arrived rows, computed
// `computed` at a time.
int64_t experts_workspace(const Deployment& d, int64_t rows, int64_t computed) {
  return inner_workspace(d, computed, false) + (slots_of(d, computed, false) + rows) * row_bytes(d);
}

// Batched rows are where GEMM1 reads and GEMM2 writes; GPUs have room to encode them all the same.
int64_t batched_workspace(const Deployment& d, int64_t rows) {
  const bool encodes = d.device.is_cuda() && d.formats.activations;
  const int64_t operand =
      encodes ? coded_row_bytes(d) + widened_bytes(d, d.local_intermediate(), d.layer.hidden) : 0;
  return inner_workspace(d, rows, true) + slots_of(d, rows, true) * (operand + row_bytes(d));
}

// Of one received row, its tag included.  CPUs keep room for rows of either form.
int64_t output_row_bytes(const Deployment& d) {
  constexpr int64_t kTag = 4;
  if (!travels_quantized(All2AllBackend::kLowLatency, d.formats)) {
    return kTag + row_bytes(d);
  }
  const int64_t cast = coded_row_bytes(d);
  return kTag + (d.device.is_cuda() ? cast : cast - d.layer.hidden + row_bytes(d));
}

// Rows as they reach the experts: quantized where they arrive, or gathered.
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

// The layouts themselves and not LowLatency::size_hint, which knows GPUs only in a build with CUDA.
int64_t low_latency_window_bytes(const Deployment& d) {
  const LayerShape& l = d.layer;
  if (d.device.is_cuda() && d.topology().num_nodes() == 1) {
    return comm::CudaLowLatencyLayout::make(low_latency_tokens(), l.routing.topk, l.hidden,
                                            bits(l.dtype) / 8, d.ranks, most_places(d))
        .bytes();
  }
  return LowLatencyLayout::make(low_latency_options(d), d.ranks).bytes();
}

int64_t receive_bank_bytes(const Deployment& d, int64_t rows) {
  return BankPool::roomy(high_throughput_layout(d).block_bytes(rows));
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
      // A bank per result; on GPUs rows come back into slots, as many as this rank has sent.
      const int64_t slots =
          d.device.is_cuda()
              ? BankPool::roomy(own * std::min<int64_t>(topk, d.ranks - 1) * row_bytes(d))
              : 0;
      b.windows = parts * receive_bank_bytes(d, (rows + parts - 1) / parts) + slots;
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
