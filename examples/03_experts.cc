// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Experts: the expert computation by itself, with its workspaces; the layer does this for you.
#include <cmath>
#include <cstdio>

#include "moebius/experts.h"

int main() {
  using namespace moebius;
  constexpr int64_t kTokens = 5;
  ExpertsDesc desc;
  desc.num_experts = 4;
  desc.num_local_experts = 4;
  desc.topk = 2;
  desc.hidden = 64;
  desc.intermediate = 32;

  // Every weight of expert e is 0.01 * (e + 1).
  ExpertWeights weights;
  weights.w1 = Tensor::empty({4, desc.w1_rows(), desc.hidden}, DType::kBF16);
  weights.w2 = Tensor::empty({4, desc.hidden, desc.intermediate}, DType::kBF16);
  for (const Tensor& w : {weights.w1, weights.w2}) {
    for (int64_t i = 0; i < w.numel(); ++i) {
      set_float(w, i, 0.01f * static_cast<float>(i / (w.numel() / 4) + 1));
    }
  }
  const Stream stream;
  const auto experts = make_experts(desc, weights, stream);

  ExpertsInput input;
  input.x = Tensor::empty({kTokens, desc.hidden}, DType::kBF16);
  input.topk_ids = Tensor::empty({kTokens, desc.topk}, DType::kI32);
  input.topk_weights = Tensor::empty({kTokens, desc.topk}, DType::kF32);
  for (int64_t i = 0; i < input.x.numel(); ++i) {
    set_float(input.x, i, 0.5f);
  }
  for (int32_t i = 0; i < kTokens * 2; ++i) {
    input.topk_ids.data<int32_t>()[i] = i % 4;  // token 0: experts 0 and 1, token 1: 2 and 3, ...
    input.topk_weights.data<float>()[i] = 0.5f;
  }

  const ExpertsWorkspace sizes = experts->workspace(kTokens);
  const Tensor output = Tensor::empty(sizes.output, sizes.dtype);
  experts->apply(input, output, Tensor::empty(sizes.intermediate, sizes.dtype),
                 Tensor::empty({sizes.scratch_bytes}, DType::kU8), stream);
  std::printf("%s gives %s %s\n", std::string(experts->name()).c_str(),
              std::string(name(output.dtype())).c_str(), to_string(output.shape()).c_str());

  // By hand for expert e: g = u = 64 * 0.01 (e + 1) * 0.5, y = 32 * 0.01 (e + 1) * silu(g) * u.
  const auto by_hand = [](float e) {
    const float g = 0.32f * (e + 1);
    return g * (g / (1 + std::exp(-g))) * g;
  };
  // Some implementations weight and sum the rows of a token themselves.
  const bool is_final = experts->traits().weight_and_reduce == WeightAndReduceKind::kNoOp;
  const float expected = is_final ? 0.5f * by_hand(0) + 0.5f * by_hand(1) : by_hand(0);
  std::printf("%s: %.5f, by hand %.5f\n", is_final ? "token 0" : "expert 0",
              static_cast<double>(get_float(output, 0)), static_cast<double>(expected));
  return std::abs(get_float(output, 0) - expected) < 0.02f * expected ? 0 : 1;
}
