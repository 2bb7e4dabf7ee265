// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency with hooks: the send half runs at once, the program does something else while rows
// travel, and the hook takes them in.  Decoding a batch with overlap looks like this.
#include <atomic>
#include <cstdio>

#include "moebius/low_latency.h"

namespace {

using namespace moebius;

constexpr int kNumRanks = 2;
constexpr int64_t kNumExperts = 4;
constexpr int64_t kTokens = 3;  // of each rank
constexpr int64_t kHidden = 128;

// Work of the program that needs no rows: here it only counts.
std::atomic<int64_t> other_work = 0;
void do_other_work() {
  ++other_work;
}

bool is_rank_right(Group& group) {
  LowLatencyOptions options;
  options.max_tokens = kTokens;
  options.hidden = kHidden;
  options.topk = 1;
  options.in_dtype = DType::kF32;
  LowLatency transport(group, ExpertPlacement::linear(kNumExperts, kNumRanks), options);

  const Tensor hidden = Tensor::empty({kTokens, kHidden}, DType::kF32);
  const Tensor ids = Tensor::empty({kTokens, 1}, DType::kI32);
  const Tensor weights = Tensor::empty({kTokens, 1}, DType::kF32);
  for (int64_t i = 0; i < hidden.numel(); ++i) {
    hidden.data<float>()[i] = static_cast<float>(i % 5) + static_cast<float>(group.rank());
  }
  for (int64_t token = 0; token < kTokens; ++token) {
    ids.data<int32_t>()[token] = static_cast<int32_t>((token + group.rank()) % kNumExperts);
    weights.data<float>()[token] = 0.5f;
  }

  LowLatencyDispatchInput input;
  input.x = hidden;
  input.topk_ids = ids;
  auto sent = transport.dispatch_async(input, Stream());
  do_other_work();
  const LowLatencyDispatchOutput received = sent.finish();  // the hook, then the result

  // The experts: each row becomes its negative.  Rows of expert l stand at the front of x[l].
  const Tensor results = Tensor::zeros(received.x.shape(), DType::kF32);
  for (int64_t expert = 0; expert < received.x.dim(0); ++expert) {
    const int64_t count = received.expert_num_tokens.data<int32_t>()[expert] * kHidden;
    const float* x = received.x[expert].data<float>();
    for (int64_t i = 0; i < count; ++i) {
      results[expert].data<float>()[i] = -x[i];
    }
  }

  LowLatencyCombineInput back;
  back.x = results;
  back.topk_ids = ids;
  back.topk_weights = weights;
  auto returned = transport.combine_async(back, *received.handle, Stream());
  do_other_work();
  const Tensor output = returned.finish().x;
  for (int64_t i = 0; i < output.numel(); ++i) {
    if (output.data<float>()[i] != -0.5f * hidden.data<float>()[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main() {
  std::atomic<int> num_right = 0;
  run_thread_ranks({.num_ranks = kNumRanks},
                   [&](Group& group) { num_right += is_rank_right(group) ? 1 : 0; });
  std::printf("%d of %d ranks got their results back\n", num_right.load(), kNumRanks);
  return num_right == kNumRanks ? 0 : 1;
}
