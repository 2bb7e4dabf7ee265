// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Router: which experts each token visits, and with which weight.
#include <cstdio>

#include "moebius/router.h"

int main() {
  using namespace moebius;
  constexpr int64_t kTokens = 3, kHidden = 8, kExperts = 4;

  // Mixtral routes this way: softmax over all experts, the two best, weights that sum to 1.
  RouterConfig config;
  config.num_experts = kExperts;
  config.topk = 2;
  config.scoring = Scoring::kSoftmax;
  config.renormalize = true;

  // Expert e looks at element e of a token.
  RouterWeights weights;
  weights.gate = Tensor::zeros({kExperts, kHidden}, DType::kBF16);
  for (int64_t e = 0; e < kExperts; ++e) {
    set_float(weights.gate, e * kHidden + e, 1.0f);
  }
  const Router router(config, weights);

  const Tensor hidden = Tensor::zeros({kTokens, kHidden}, DType::kBF16);
  for (int64_t t = 0; t < kTokens; ++t) {
    set_float(hidden, t * kHidden + t, 3.0f);      // most for expert t
    set_float(hidden, t * kHidden + t + 1, 2.0f);  // then for expert t + 1
  }

  const Stream stream;
  const Tensor logits = Tensor::empty({kTokens, kExperts}, DType::kF32);
  const Tensor ids = Tensor::empty({kTokens, config.topk}, DType::kI32);
  const Tensor topk_weights = Tensor::empty({kTokens, config.topk}, DType::kF32);
  router.logits(hidden, logits, stream);
  router.select(logits, ids, topk_weights, stream);

  bool ok = true;
  for (int64_t t = 0; t < kTokens; ++t) {
    const int32_t* chosen = ids.data<int32_t>() + t * config.topk;
    const float* weight = topk_weights.data<float>() + t * config.topk;
    std::printf("token %d: expert %d (%.3f), expert %d (%.3f)\n", static_cast<int>(t), chosen[0],
                static_cast<double>(weight[0]), chosen[1], static_cast<double>(weight[1]));
    ok = ok && chosen[0] == t && chosen[1] == t + 1;
  }
  return ok ? 0 : 1;
}
