// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/low_latency_calls.h"

#include <algorithm>
#include <cmath>

namespace moebius::testing {

namespace {

// The cast as the header defines it.
void expect_cast(const Tensor& row, const Tensor& values, const Tensor& scales, bool ue8m0) {
  for (int64_t g = 0; g < row.numel() / 128; ++g) {
    float amax = 1e-4f;
    for (int64_t i = 0; i < 128; ++i) {
      amax = std::max(amax, std::fabs(get_float(row, g * 128 + i)));
    }
    float scale = amax * (1.0f / 448.0f);
    float factor = 448.0f / amax;
    if (ue8m0) {
      scale = std::exp2(std::ceil(std::log2(static_cast<double>(scale))));
      factor = 1.0f / scale;
    }
    ASSERT_EQ(get_float(scales, g), scale);
    for (int64_t i = g * 128; i < (g + 1) * 128; ++i) {
      ASSERT_EQ(get_float(values, i), static_cast<float>(F8E4M3(get_float(row, i) * factor)));
    }
  }
}

}  // namespace

std::vector<DispatchProblem> low_latency_problems(int num_ranks) {
  std::vector<DispatchProblem> problems = dispatch_problems(num_ranks);
  for (DispatchProblem& p : problems) {
    for (int64_t& tokens : p.tokens) {
      tokens = std::min(tokens, kMaxTokens);
    }
    if (p.hidden != 45) {
      p.hidden = num_ranks > 16 ? 128 : 256;  // windows of many ranks are large
    }
  }
  return problems;
}

LowLatencyOptions options_for(const DispatchProblem& p, LowLatencySum sum) {
  return {kMaxTokens, p.hidden, p.topk, DType::kBF16, 0, sum};
}

void for_each_row(
    const DispatchProblem& p,
    const std::vector<RankInput>& inputs,
    int rank,
    const std::function<void(int source, int64_t selection, int64_t local, int64_t row)>& visit) {
  const ExpertPlacement placement = p.placement();
  std::vector<int64_t> next(static_cast<size_t>(placement.num_local(rank)), 0);
  for (int s = 0; s < p.num_ranks; ++s) {
    const Tensor& ids = inputs[static_cast<size_t>(s)].ids;
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const int32_t id = ids.data<int32_t>()[i];
      if (id >= 0 && placement.rank_of(id) == rank) {
        const int64_t local = placement.local_index(id);
        visit(s, i, local, next[static_cast<size_t>(local)]++);
      }
    }
  }
}

void expect_dispatched(const DispatchProblem& p,
                       const std::vector<RankInput>& inputs,
                       int rank,
                       const LowLatencyDispatchOutput& output,
                       LowLatencyCast cast,
                       int64_t room) {
  const int64_t num_local = p.placement().num_local(rank);
  const int64_t rows = room * p.num_ranks;
  ASSERT_EQ(output.x.shape(), Shape({num_local, rows, p.hidden}));
  ASSERT_EQ(output.source_token.shape(), Shape({num_local, rows}));
  ASSERT_EQ(output.source_ranges.shape(), Shape({num_local, p.num_ranks}));
  std::vector<int64_t> from(static_cast<size_t>(num_local * p.num_ranks), 0);
  std::vector<int32_t> counts(static_cast<size_t>(num_local), 0);
  for_each_row(p, inputs, rank, [&](int source, int64_t selection, int64_t local, int64_t row) {
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    const Tensor sent = inputs[static_cast<size_t>(source)].x[selection / p.topk];
    if (cast == kNoCast) {
      ASSERT_TRUE(same_bytes(output.x[local][row], sent)) << "expert " << local << " row " << row;
    } else {
      expect_cast(sent, output.x[local][row], output.x_scale[local][row],
                  cast == LowLatencyCast::kFp8Ue8m0);
    }
    ASSERT_EQ(output.source_token[local].data<int32_t>()[row], selection / p.topk);
    ++counts[static_cast<size_t>(local)];
    ++from[static_cast<size_t>(local * p.num_ranks + source)];
  });
  for (size_t l = 0; l < counts.size(); ++l) {
    ASSERT_EQ(output.expert_num_tokens.data<int32_t>()[l], counts[l]);
    int64_t begin = 0;
    for (size_t s = 0; s < static_cast<size_t>(p.num_ranks); ++s) {
      const size_t i = l * static_cast<size_t>(p.num_ranks) + s;
      ASSERT_EQ(output.source_ranges.data<int64_t>()[i], begin << 32 | from[i])
          << "expert " << l << " rank " << s;
      begin += from[i];
    }
  }
}

Tensor run_experts(const DispatchProblem& p, int rank, const LowLatencyDispatchOutput& received) {
  return expert_products(p.placement(), rank, received.x, received.expert_num_tokens,
                         [](int64_t e) { return static_cast<float>(e + 1); });
}

Tensor expected_combined(const DispatchProblem& p,
                         const RankInput& in,
                         const std::set<int>& dead,
                         LowLatencySum sum) {
  const ExpertPlacement placement = p.placement();
  const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
  for (int64_t at = 0; at < out.numel(); ++at) {
    const int64_t first = at / p.hidden * p.topk;
    // The weighted rows of the ranks that are `counted`, in order of slots.
    const auto sum_of = [&](const auto& counted) {
      float total = 0.0f;
      for (int64_t i = first; i < first + p.topk; ++i) {
        const int32_t id = in.ids.data<int32_t>()[i];
        if (id >= 0 && counted(placement.rank_of(id))) {
          const BFloat16 y(get_float(in.x, at) * static_cast<float>(id + 1));
          total += in.weights.data<float>()[i] * static_cast<float>(y);
        }
      }
      return total;
    };
    float total = 0.0f;
    if (sum == LowLatencySum::kSelections) {
      total = sum_of([&](int rank) { return !dead.contains(rank); });
    } else {
      for (int r = 0; r < p.num_ranks; ++r) {
        const float of_rank = sum_of([&](int rank) { return rank == r && !dead.contains(r); });
        total += static_cast<float>(BFloat16(of_rank));
      }
    }
    set_float(out, at, total);
  }
  return out;
}

}  // namespace moebius::testing
