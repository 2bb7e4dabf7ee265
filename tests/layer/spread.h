// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Spread: how a layer is spread over dp * tp ranks, and a function that runs it there.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "moebius/error.h"
#include "moebius/group.h"
#include "moebius/moe_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {

struct Spread {
  std::string name;
  int tp = 1;
  int dp = 1;
  All2AllBackend backend = All2AllBackend::kNone;
  bool use_ep = true;
  bool monolithic = false;
  int ranks_per_node = 0;
  ActivationFormat format = ActivationFormat::kStandard;
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;
  bool last_without_ids = false;  // the last data-parallel rank gives no lora_ids
  bool is_scattered = false;      // neighbouring experts live on different ranks

  ParallelConfig parallel(int rank) const {
    return ParallelConfig::make(tp, rank % tp, dp, rank / tp, use_ep, backend);
  }
  // Which experts live where; nullopt: linear.
  std::optional<ExpertPlacement> placement(int64_t num_experts) const {
    if (!is_scattered) {
      return std::nullopt;
    }
    const int num_ranks = tp * dp;
    std::vector<int> rank_of;
    for (int64_t e = 0; e < num_experts; ++e) {
      rank_of.push_back(static_cast<int>((num_experts - 1 - e) % num_ranks));
    }
    return ExpertPlacement::from_ranks(std::move(rank_of), num_ranks);
  }
  // `chosen`, with the options that the spread decides.
  MoeLayerOptions options(MoeLayerOptions chosen = {}) const {
    chosen.monolithic = monolithic;
    chosen.format = format;
    chosen.low_latency_sum = low_latency_sum;
    return chosen;
  }
};
inline void PrintTo(const Spread& spread, std::ostream* out) {
  *out << spread.name;
}

// The tokens that a rank brings to a call.
struct RankTokens {
  Tensor hidden;         // [T, H] f32
  Tensor lora_ids = {};  // i32 [T] or undefined
  Tensor topk_ids = {};  // see MoeLayerInput
  Tensor topk_weights = {};

  MoeLayerInput input() const {
    return {
        .hidden = hidden, .topk_ids = topk_ids, .topk_weights = topk_weights, .lora_ids = lora_ids};
  }
};

// Runs a layer and returns the outputs by rank.  weights_of(parallel) gives the weights of a rank,
// and tokens_of(rank) its tokens.  Every rank calls twice, because the second call finds the state
// that the first has left.
template <typename WeightsOf, typename TokensOf>
std::vector<Tensor> run_spread(const Spread& spread,
                               const MoeLayerOptions& options,
                               const WeightsOf& weights_of,
                               const TokensOf& tokens_of) {
  const int num_ranks = spread.tp * spread.dp;
  std::vector<Tensor> outputs(static_cast<size_t>(num_ranks));
  run_thread_ranks(
      {.num_ranks = num_ranks, .ranks_per_node = spread.ranks_per_node}, [&](Group& group) {
        const Stream stream = Stream::cpu(1);
        MoeLayer layer(weights_of(spread.parallel(group.rank())), options, stream, &group);
        WorkspacePool pool;
        const RankTokens tokens = tokens_of(group.rank());
        const Tensor output = Tensor::empty(tokens.hidden.shape(), DType::kF32);
        for (int call = 0; call < 2; ++call) {
          poison(output);
          layer.forward(tokens.input(), output, {stream, &pool});
        }
        outputs[static_cast<size_t>(group.rank())] = output;
      });
  return outputs;
}

// The rows of all data-parallel ranks, in order of rank, as [num_tokens, H].
inline Tensor joined_rows(const Spread& spread,
                          const std::vector<Tensor>& outputs,
                          int64_t num_tokens) {
  const Tensor all = Tensor::empty({num_tokens, outputs[0].dim(1)}, DType::kF32);
  int64_t row = 0;
  for (size_t rank = 0; rank < outputs.size(); rank += static_cast<size_t>(spread.tp)) {
    const Tensor& own = outputs[rank];
    copy(own, all.slice(row, row + own.dim(0)), {});
    row += own.dim(0);
  }
  EXPECT_EQ(row, num_tokens);
  return all;
}

// The relative error of every row must be within `bound`.
inline void expect_near_rows(const Tensor& actual, const Tensor& expected, double bound) {
  ASSERT_EQ(actual.shape(), expected.shape());
  for (int64_t t = 0; t < expected.dim(0); ++t) {
    EXPECT_LE(relative_error(actual[t], expected[t]), bound) << "row " << t;
  }
}

// The same for the output of call number `call` in a rank of its own, which throws.
inline void expect_rows_of_one_rank(const Tensor& actual,
                                    const Tensor& expected,
                                    double bound,
                                    int call) {
  for (int64_t t = 0; t < expected.dim(0); ++t) {
    expect(relative_error(actual[t], expected[t]) <= bound,
           [&] { return fmt::format("row {} of call {} is not that of one rank", t, call); });
  }
}

}  // namespace moebius::testing
