// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ParallelConfig: what tensor, data and expert parallelism of a model mean for its MoE layers.
// MoeConfig: the fixed facts of one MoE layer on one rank.
// The rules are those of vLLM's FusedMoEParallelConfig and FusedMoEConfig.
// Letters: E experts, K top-k.  Thread-safety: values without shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "moebius/api.h"
#include "moebius/dtype.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

enum class All2AllBackend : uint8_t {
  kNone,
  kAllGatherReduceScatter,
  kHighThroughput,
  kLowLatency,
};
// Names are those of the command's option --all2all.
std::string_view name(All2AllBackend backend);
// Also takes vLLM's names: naive (allgather_reducescatter), deepep_high_throughput and
// deepep_low_latency.  Returns nullopt for an unknown name; throws Unsupported for pplx, which this
// library does not have.
std::optional<All2AllBackend> all2all_backend_from_name(std::string_view name);

// Sizes and ranks after flattening.  A model that was started with dp and tp has dp * tp devices.
// Without expert parallelism every expert is sharded over all of them: tp_size is dp * tp, and
// tp_rank is dp_rank * tp + tp_rank.  With it every expert lives whole on one device: ep_size is
// dp * tp, and tp_size is 1.
struct ParallelConfig {
  int tp_size = 1, tp_rank = 0;
  int dp_size = 1, dp_rank = 0;
  int ep_size = 1, ep_rank = 0;
  bool use_ep = false;
  All2AllBackend backend = All2AllBackend::kNone;

  // tp_size and dp_size are those that the model was started with.  Throws InvalidArgument for a
  // size below 1, a rank outside its size, or more ranks in all than an int can count.
  static ParallelConfig make(int tp_size,
                             int tp_rank,
                             int dp_size,
                             int dp_rank,
                             bool enable_expert_parallel,
                             All2AllBackend backend = All2AllBackend::kNone);

  bool operator==(const ParallelConfig&) const = default;
};

struct MoeConfig {
  int64_t num_experts = 0;        // E > 0
  int64_t experts_per_token = 1;  // K in [1, E]
  int64_t hidden = 0;
  int64_t intermediate = 0;       // of a whole expert, before TP shards it
  int64_t num_local_experts = 0;  // 0: validate() computes it from parallel
  ParallelConfig parallel = {};
  DType in_dtype = DType::kBF16;
  // The most tokens that a batched backend takes from a rank in one call; longer inputs are split.
  int64_t max_num_tokens = 256;

  // Throws InvalidArgument that names the value at fault.  Sets num_local_experts if it is 0; the
  // first E % ep_size ranks own one expert more.
  void validate();
  int64_t tp_shard_intermediate() const;  // throws InvalidArgument when tp does not divide it
};

// The experts [begin, end) that a rank owns under linear placement; the first E % ep_size ranks own
// one more.  expert_range() throws InvalidArgument for a size below 1 or a rank outside it.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
ExpertRange expert_range(int64_t num_experts, int ep_size, int ep_rank);
// i32 [E] on the CPU: an expert's index within the range, or -1 outside it.  Throws InvalidArgument
// for a range that is not within the experts.
Tensor make_expert_map(int64_t num_experts, ExpertRange range);

}  // namespace moebius
