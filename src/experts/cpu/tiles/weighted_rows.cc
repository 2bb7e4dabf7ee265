// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/weighted_rows.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/ids.h"
#include "core/parallel.h"
#include "core/token_sums.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kWeightsPerTask = 4096;

}  // namespace

void fill_row_weights(const ExpertsInput& input,
                      const RowOrder& order,
                      float* weights,
                      const Stream& stream) {
  const float* of_slot =
      input.apply_router_weight_on_input ? nullptr : input.topk_weights.data<float>();
  parallel_for(stream, order.num_rows, kWeightsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float weight = of_slot != nullptr ? of_slot[order.output_rows[r]] : 1.0f;
      weights[r] = std::isnan(weight) ? std::numeric_limits<float>::quiet_NaN() : weight;
    }
  });
}

void sum_weighted_rows(const ExpertsInput& input,
                       const Tensor& slots,
                       const Tensor& output,
                       const Stream& stream) {
  const int64_t topk = input.topk_ids.dim(1);
  const Ids ids = Ids::of(input.topk_ids);
  const auto* map = input.expert_map ? input.expert_map.data<int32_t>() : nullptr;
  const SumRounding rounding =
      sums_in_dtype(topk) ? SumRounding::kProductsAndSums : SumRounding::kSum;
  sum_tokens(slots, output, rounding, stream, [&](int64_t t, std::vector<TokenTerm>& terms) {
    for (int64_t i = t * topk; i < (t + 1) * topk; ++i) {
      if (ids[i] >= 0 && (map == nullptr || map[ids[i]] >= 0)) {
        terms.push_back({i, 1.0f});
      }
    }
  });
}

}  // namespace moebius::cpu
