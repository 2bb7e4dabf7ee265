// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The backends of the conformance matrix, each with the sum that it is documented to make.
#include <algorithm>
#include <iterator>
#include <vector>

#include "moebius/all2all.h"
#include "problems/layer_matrix.h"

namespace moebius::testing {

namespace {

float rounded(DType dtype, float x) {
  return dtype == DType::kBF16  ? static_cast<float>(BFloat16(x))
         : dtype == DType::kF16 ? static_cast<float>(Float16(x))
                                : x;
}

// Adds weighted terms in the order of slots.  Where there are 2 to 4, the sum is kept in the dtype.
float sum_contiguous(std::span<const LayerTerm> terms,
                     int64_t topk,
                     DType dtype,
                     const Topology& /*topology*/) {
  const bool in_dtype = topk >= 2 && topk <= 4;
  float sum = 0;
  for (const LayerTerm& term : terms) {
    sum += rounded(dtype, term.y * term.weight);
    sum = in_dtype ? rounded(dtype, sum) : sum;
  }
  return rounded(dtype, sum);
}

// Adds weighted terms in the order of experts, always in the dtype.
float sum_naive_batched(std::span<const LayerTerm> terms,
                        int64_t /*topk*/,
                        DType dtype,
                        const Topology& /*topology*/) {
  std::vector<LayerTerm> sorted(terms.begin(), terms.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const LayerTerm& a, const LayerTerm& b) { return a.expert < b.expert; });
  float sum = 0;
  for (const LayerTerm& term : sorted) {
    sum = rounded(dtype, sum + rounded(dtype, term.y * term.weight));
  }
  return sum;
}

float sum_of_rank(std::span<const LayerTerm> terms,
                  int rank,
                  int64_t topk,
                  DType dtype,
                  const Topology& topology) {
  std::vector<LayerTerm> own;
  std::copy_if(terms.begin(), terms.end(), std::back_inserter(own),
               [&](const LayerTerm& term) { return term.rank == rank; });
  return sum_contiguous(own, topk, dtype, topology);
}

// Adds the partial sums of ranks in f32, in the order of ranks.
float sum_over_ranks(std::span<const LayerTerm> terms,
                     int64_t topk,
                     DType dtype,
                     const Topology& topology) {
  float sum = 0;
  for (int rank = 0; rank < topology.size; ++rank) {
    sum += sum_of_rank(terms, rank, topk, dtype, topology);
  }
  return rounded(dtype, sum);
}

// The same, but it adds within each node first where there are several.
float sum_over_nodes(std::span<const LayerTerm> terms,
                     int64_t topk,
                     DType dtype,
                     const Topology& topology) {
  float total = 0;
  for (int node = 0; node < topology.num_nodes(); ++node) {
    float sum = 0;
    for (int rank = 0; rank < topology.size; ++rank) {
      if (topology.node_of(rank) == node) {
        sum += sum_of_rank(terms, rank, topk, dtype, topology);
      }
    }
    total += topology.num_nodes() > 1 ? rounded(dtype, sum) : sum;
  }
  return rounded(dtype, total);
}

// Adds weighted terms in f32 in the order of slots, without rounding products.
float sum_slots(std::span<const LayerTerm> terms,
                int64_t /*topk*/,
                DType dtype,
                const Topology& /*topology*/) {
  float sum = 0;
  for (const LayerTerm& term : terms) {
    sum += term.weight * term.y;
  }
  return rounded(dtype, sum);
}

constexpr LayerBackend kBackends[] = {
    {.name = "none",
     .over_ranks = false,
     .sum = sum_contiguous,
     .make = [](Group&, const ExpertPlacement&, const ExpertsDesc&) { return make_no_ep(); }},
    {.name = "none_batched",
     .format = ActivationFormat::kBatched,
     .over_ranks = false,
     .sum = sum_naive_batched,
     .make =
         [](Group&, const ExpertPlacement&, const ExpertsDesc& desc) {
           return make_no_ep_batched(LayerProblem::kMaxTokens, desc.num_local_experts);
         }},
    {.name = "allgather_reducescatter",
     .scope = LayerScope::kGathered,
     .sum = sum_over_ranks,
     .make = [](Group& group,
                const ExpertPlacement&,
                const ExpertsDesc&) { return make_allgather_reducescatter(group); }},
    {.name = "monolithic",
     .is_monolithic = true,
     .scope = LayerScope::kGathered,
     .sum = sum_over_ranks,
     .make =
         [](Group& group, const ExpertPlacement&, const ExpertsDesc&) {
           return make_allgather_reducescatter(group, /*monolithic=*/true);
         }},
    {.name = "high_throughput",
     .scope = LayerScope::kReceived,
     .sum = sum_over_nodes,
     .make =
         [](Group& group, const ExpertPlacement& placement, const ExpertsDesc&) {
           return make_high_throughput(std::make_shared<HighThroughput>(group, placement));
         }},
    {.name = "low_latency",
     .format = ActivationFormat::kBatched,
     .scope = LayerScope::kInFlight,
     .sum = sum_slots,
     .make =
         [](Group& group, const ExpertPlacement& placement, const ExpertsDesc& desc) {
           const LowLatencyOptions options{LayerProblem::kMaxTokens, desc.hidden, desc.topk,
                                           desc.in_dtype};
           return make_low_latency(std::make_shared<LowLatency>(group, placement, options));
         }},
};

}  // namespace

std::span<const LayerBackend> layer_backends() {
  return kBackends;
}

}  // namespace moebius::testing
