// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine with experts of the program's own in between: rows travel to the ranks that
// own their experts, are computed there by any code, and come back summed.
#include <atomic>
#include <cmath>
#include <cstdio>

#include "moebius/dispatch.h"

namespace {

using namespace moebius;

constexpr int kNumRanks = 4;
constexpr int64_t kNumExperts = 8;
constexpr int64_t kTokens = 16;  // of each rank
constexpr int64_t kHidden = 64;
constexpr int64_t kTopk = 2;

int expert_of(int rank, int64_t token, int64_t slot) {
  return static_cast<int>((3 * rank + token + 5 * slot) % kNumExperts);
}
// The program's experts: number e multiplies by e + 1.
float expert(int id, float x) {
  return static_cast<float>(id + 1) * x;
}

// Returns what a rank contributes to each row it has received: the weighted sum of its experts.
Tensor compute_own_experts(const DispatchOutput& received, int first_expert) {
  const Tensor& x = received.payloads[0];
  const Tensor result = Tensor::zeros(x.shape(), DType::kF32);
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t slot = 0; slot < kTopk; ++slot) {
      const int32_t local = received.topk_ids.data<int32_t>()[row * kTopk + slot];
      if (local < 0) {
        continue;  // another rank's
      }
      const float weight = received.topk_weights.data<float>()[row * kTopk + slot];
      for (int64_t column = 0; column < kHidden; ++column) {
        const int64_t at = row * kHidden + column;
        result.data<float>()[at] += weight * expert(first_expert + local, x.data<float>()[at]);
      }
    }
  }
  return result;
}

bool is_rank_right(Group& group) {
  const auto placement = ExpertPlacement::linear(kNumExperts, kNumRanks);
  HighThroughput transport(group, placement);
  const Tensor hidden = Tensor::empty({kTokens, kHidden}, DType::kF32);
  const Tensor ids = Tensor::empty({kTokens, kTopk}, DType::kI32);
  const Tensor weights = Tensor::empty({kTokens, kTopk}, DType::kF32);
  for (int64_t i = 0; i < hidden.numel(); ++i) {
    hidden.data<float>()[i] = static_cast<float>(group.rank() + 1) + static_cast<float>(i % 7);
  }
  for (int64_t token = 0; token < kTokens; ++token) {
    for (int64_t slot = 0; slot < kTopk; ++slot) {
      ids.data<int32_t>()[token * kTopk + slot] = expert_of(group.rank(), token, slot);
      weights.data<float>()[token * kTopk + slot] = slot == 0 ? 0.75f : 0.25f;
    }
  }

  DispatchInput input;
  input.payloads = {hidden};
  input.topk_ids = ids;
  input.topk_weights = weights;
  const DispatchOutput received = transport.dispatch(input, Stream());
  CombineInput back;
  back.x = compute_own_experts(received, group.rank() * static_cast<int>(kNumExperts / kNumRanks));
  const CombineOutput combined = transport.combine(back, *received.handle, Stream());

  for (int64_t token = 0; token < kTokens; ++token) {
    for (int64_t column = 0; column < kHidden; ++column) {
      const float x = hidden.data<float>()[token * kHidden + column];
      const float expected = 0.75f * expert(expert_of(group.rank(), token, 0), x) +
                             0.25f * expert(expert_of(group.rank(), token, 1), x);
      if (std::fabs(combined.x.data<float>()[token * kHidden + column] - expected) > 1e-4f) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main() {
  std::atomic<int> num_right = 0;
  run_thread_ranks({.num_ranks = kNumRanks},
                   [&](Group& group) { num_right += is_rank_right(group) ? 1 : 0; });
  std::printf("%d of %d ranks got their sums back\n", num_right.load(), kNumRanks);
  return num_right == kNumRanks ? 0 : 1;
}
