// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/permute.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/ids.h"

namespace moebius {

namespace {

// Maps ids to local experts; masked and foreign ids give -1.
class LocalIds {
 public:
  LocalIds(const Tensor& expert_map, int64_t num_experts, int64_t num_local_experts)
      : map_(expert_map ? expert_map.data<int32_t>() : nullptr),
        bound_(map_ != nullptr ? num_experts : num_local_experts) {
    for (int64_t e = 0; map_ != nullptr && e < num_experts; ++e) {
      if (map_[e] < -1 || map_[e] >= num_local_experts) {
        throw InvalidArgument(fmt::format("expert_map[{}] is {}, expected -1 or [0, {})", e,
                                          map_[e], num_local_experts));
      }
    }
  }

  bool valid(int32_t id) const { return id >= -1 && id < bound_; }
  int64_t bound() const { return bound_; }
  int32_t operator()(int32_t id) const { return id < 0 || map_ == nullptr ? id : map_[id]; }

 private:
  const int32_t* map_;
  int64_t bound_;
};

}  // namespace

void order_selections(const Tensor& topk_ids,
                      const Tensor& expert_map,
                      int64_t num_experts,
                      int64_t num_local_experts,
                      RowOrder& order) {
  const LocalIds local(expert_map, num_experts, num_local_experts);
  const Ids ids = Ids::of(topk_ids);
  const int64_t topk = topk_ids.dim(1);
  order.num_slots = topk_ids.numel();
  order.rows_per_input = topk;

  for (int64_t i = 0; i < order.num_slots; ++i) {
    if (!local.valid(ids[i])) {
      throw InvalidArgument(
          fmt::format("topk_ids of token {}, slot {} is {}, expected -1 or [0, {})", i / topk,
                      i % topk, ids.value(i), local.bound()));
    }
  }

  // offsets[e + 1] first counts the rows of expert e.  It then becomes their end, and rows are
  // placed from offsets[e] on.
  int32_t* offsets = order.expert_offsets;
  std::fill_n(offsets, num_local_experts + 1, 0);
  for (int64_t i = 0; i < order.num_slots; ++i) {
    if (const int32_t e = local(ids[i]); e >= 0) {
      ++offsets[e + 1];
    }
  }
  for (int64_t e = 0; e < num_local_experts; ++e) {
    offsets[e + 1] += offsets[e];
  }
  order.num_rows = offsets[num_local_experts];

  int64_t skipped = order.num_rows;
  for (int64_t i = 0; i < order.num_slots; ++i) {
    const int32_t e = local(ids[i]);
    const int64_t place = e >= 0 ? offsets[e]++ : skipped++;
    order.output_rows[place] = static_cast<int32_t>(i);
  }
  // By now each offset has moved on to where the next expert begins.
  std::copy_backward(offsets, offsets + num_local_experts, offsets + num_local_experts + 1);
  offsets[0] = 0;
}

void order_batched(const Tensor& expert_num_tokens, int64_t max_rows, RowOrder& order) {
  const int32_t* counts = expert_num_tokens.data<int32_t>();
  const int64_t num_local_experts = expert_num_tokens.numel();
  order.num_slots = num_local_experts * max_rows;
  order.rows_per_input = 1;
  int32_t next = 0;
  for (int64_t e = 0; e < num_local_experts; ++e) {
    if (counts[e] < 0 || counts[e] > max_rows) {
      throw InvalidArgument(
          fmt::format("expert_num_tokens[{}] is {}, expected [0, {}]", e, counts[e], max_rows));
    }
    order.expert_offsets[e] = next;
    for (int32_t i = 0; i < counts[e]; ++i) {
      order.output_rows[next++] = static_cast<int32_t>(e * max_rows) + i;
    }
  }
  order.expert_offsets[num_local_experts] = next;
  order.num_rows = next;
}

}  // namespace moebius
