// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ParallelConfig: how tensor, data and expert parallelism of a model fall onto the MoE layer.
// MoeConfig: the fixed facts of one MoE layer on one rank.
// Source of the rules: vLLM's FusedMoEParallelConfig and FusedMoEConfig.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "moebius/dtype.h"
#include "moebius/tensor.h"

namespace moebius {

enum class All2AllBackend : uint8_t {
  kNone,
  kAllGatherReduceScatter,
  kHighThroughput,
  kLowLatency,
};
std::string_view name(All2AllBackend backend);  // as the command's --all2all writes it
std::optional<All2AllBackend> all2all_backend_from_name(std::string_view name);

// Sizes and ranks after flattening.  dp * tp devices in all: without expert parallelism every
// expert is sharded over all of them (tp = dp*tp, rank dp_rank*tp + tp_rank); with it every expert
// lives whole on one of them (ep = dp*tp, tp = 1).
struct ParallelConfig {
  int tp_size = 1, tp_rank = 0;
  int dp_size = 1, dp_rank = 0;
  int ep_size = 1, ep_rank = 0;
  bool use_ep = false;
  All2AllBackend backend = All2AllBackend::kNone;

  // tp_size, dp_size: as the model was started.  Throws InvalidArgument: a size < 1, a rank outside
  // its size.
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
  int64_t intermediate = 0;       // before TP sharding
  int64_t num_local_experts = 0;  // 0: computed from parallel
  ParallelConfig parallel = {};
  DType in_dtype = DType::kBF16;
  // Rows a batched backend takes from one rank in one call; longer inputs are split.
  int64_t max_num_tokens = 256;

  // Throws InvalidArgument naming the value; fills num_local_experts when 0 (the first
  // E % ep_size ranks own one more).
  void validate();
  int64_t tp_shard_intermediate() const;  // throws InvalidArgument when tp does not divide it
};

// Local experts [begin, end) of a rank under linear placement; the first E % ep_size ranks own one
// more.  Throws InvalidArgument: a size < 1, a rank outside it.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
ExpertRange expert_range(int64_t num_experts, int ep_size, int ep_rank);
// i32 [E] on the CPU: the index within the range, -1 outside it.
Tensor make_expert_map(int64_t num_experts, ExpertRange range);

}  // namespace moebius
