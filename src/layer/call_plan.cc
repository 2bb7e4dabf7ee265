// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/call_plan.h"

#include <algorithm>
#include <cmath>

#include "core/device_traits.h"

namespace moebius {

namespace {

int num_microbatches(const KernelOptions& options, const CallFacts& facts) {
  if (!asks_for_fewest_tokens(options)) {
    return options.microbatches;
  }
  const int64_t least = options.min_microbatch_tokens.value_or(
      default_min_microbatch_tokens(facts.num_experts, facts.topk, facts.num_ranks, facts.device));
  return static_cast<int>(
      std::clamp<int64_t>(facts.fewest_tokens / least, 1, options.microbatches));
}

int64_t early_rows(const KernelOptions& options, const CallFacts& facts, int num_microbatches) {
  constexpr int64_t kRows = 16384;  // measured on H200s: 8192 rows gain nothing, 32768 do
  const bool can = device_traits(facts.device).enqueues && num_microbatches == 1 &&
                   facts.can_come_in_waves &&
                   !facts.in_steps;  // the words that tell of waves serve one dispatch at a time
  if (!can || options.early_rows) {
    return can ? *options.early_rows : 0;
  }
  // Where results return in parts, shared experts begin with the dispatch and hide it as well as
  // waves would.  Waves cost every call some preparation, so a rank with few tokens asks for none,
  // and then no rank has them; if all ranks have so few tokens, none gets kRows rows anyway.
  const bool is_hidden = facts.has_shared && facts.gives_parts;
  const bool has_few = facts.num_tokens * facts.num_ranks < kRows;
  return is_hidden || has_few ? 0 : kRows;
}

// With high throughput, rows are in flight longest on their way back, where ranks that are done
// also wait for others, so shared experts are computed there.  If results go in parts, little of
// that is left to hide.  Each rank decides by its own tokens, since no other depends on it.
bool shared_first(const CallPlan& plan, const CallFacts& facts) {
  if (!device_traits(facts.device).enqueues) {
    return false;
  }
  return facts.num_ranks == 1 || !facts.takes_columns ||
         plan.combine_parts(facts.num_tokens * std::min<int64_t>(facts.topk, facts.num_ranks)) > 1;
}

// The SMs that GEMMs may take within `limit` while a transfer holds `comm_sms` of the GPU's.
int sms_beside(int comm_sms, int limit, const CallFacts& facts) {
  if (comm_sms == 0) {
    return limit;
  }
  const int left = std::max(2, facts.num_sms - comm_sms);
  return limit > 0 ? std::min(limit, left) : left;
}

}  // namespace

int CallPlan::combine_parts(int64_t most_rows) const {
  const bool can = facts.takes_columns && facts.gives_parts && most_rows <= options.chunk_tokens;
  return can ? num_combine_parts(options.combine_parts, most_rows, facts.hidden, facts.dtype,
                                 facts.num_ranks)
             : 1;
}

bool asks_for_fewest_tokens(const KernelOptions& options) {
  return options.microbatches > 1 && options.min_microbatch_tokens != 0;
}

CallPlan plan_call(const KernelOptions& options, const CallFacts& facts) {
  const bool enqueues = device_traits(facts.device).enqueues;
  CallPlan plan;
  plan.options = options;
  plan.facts = facts;
  plan.num_microbatches = num_microbatches(options, facts);
  plan.early_rows = early_rows(options, facts, plan.num_microbatches);
  plan.transfers_beside = enqueues;
  const bool others_travel = plan.num_microbatches > 1 || facts.in_steps;
  plan.counts_beside = enqueues && !others_travel;
  plan.shared_beside = enqueues && facts.has_shared;
  plan.shared_first = shared_first(plan, facts);
  plan.finalize_adds_shared = plan.shared_beside && facts.takes_addend;
  plan.gemm_sms =
      enqueues && others_travel ? sms_beside(facts.comm_sms, facts.max_sms, facts) : facts.max_sms;
  plan.sms_beside_prepare = sms_beside(facts.comm_sms, plan.gemm_sms, facts);
  plan.sms_beside_finalize = sms_beside(facts.finalize_sms, plan.gemm_sms, facts);
  return plan;
}

int64_t default_min_microbatch_tokens(int64_t num_experts,
                                      int64_t topk,
                                      int num_ranks,
                                      Device device) {
  if (!device_traits(device).enqueues) {
    return 32;
  }
  // Measured on H200s: with 256 rows GEMMs take 12 % longer, see docs/performance/layers.md.
  constexpr int64_t kRowsPerExpert = 512;
  const int64_t rows_per_token = topk * num_ranks;  // rows in all for one token of each rank
  return std::max<int64_t>(32,
                           (kRowsPerExpert * num_experts + rows_per_token - 1) / rows_per_token);
}

int num_combine_parts(int asked, int64_t rows, int64_t hidden, DType dtype, int num_ranks) {
  constexpr int64_t kBlock = 128;  // columns of a GEMM's tiles and of block scales
  // The transfer of the last part is never hidden, and each part costs its start, so the best
  // number grows with the square root of the bytes.  Measured on H200s, see
  // docs/performance/layers.md.
  constexpr double kBytesOfOne = 6 << 20;
  constexpr double kMostParts = 4;
  const int64_t leaving = rows * hidden * bits(dtype) / 8 / num_ranks * (num_ranks - 1);
  int64_t parts = asked;
  if (asked == 0) {
    const double best = std::sqrt(static_cast<double>(leaving) / kBytesOfOne);
    parts = static_cast<int64_t>(std::clamp(best, 1.0, kMostParts));
  }
  while (parts > 1 && hidden % (parts * kBlock) != 0) {
    --parts;
  }
  return static_cast<int>(parts);
}

}  // namespace moebius
