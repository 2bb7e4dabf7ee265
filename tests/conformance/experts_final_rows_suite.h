// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of experts that weight and sum their rows themselves (kNoOp), run for every entry of
// experts_impls().
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/conformance/experts_suite.h"

namespace moebius::experts_suite {

// Weights and sums rows [M, K, H] as weight_and_reduce.h says for kContiguous.
inline Tensor sum_contiguous(const ExpertsInput& input, const Tensor& rows) {
  const int64_t topk = rows.dim(1);
  const int64_t hidden = rows.dim(2);
  const bool in_dtype = topk >= 2 && topk <= 4;
  const Tensor output = Tensor::empty({rows.dim(0), hidden}, rows.dtype());
  const auto rounded = [](float x) { return static_cast<float>(BFloat16(x)); };
  for (int64_t i = 0; i < output.numel(); ++i) {
    float sum = 0;
    for (int64_t s = i / hidden * topk; s < (i / hidden + 1) * topk; ++s) {
      if (input.topk_ids.data<int32_t>()[s] >= 0) {
        const float weight =
            input.apply_router_weight_on_input ? 1.0f : input.topk_weights.data<float>()[s];
        sum += rounded(get_float(rows, s * hidden + i % hidden) * weight);
        sum = in_dtype ? rounded(sum) : sum;
      }
    }
    set_float(output, i, sum);
  }
  return output;
}

// Returns the row [M, K, H] of each selection.  Where only weights are quantized, calls have as
// many tokens as that whose rows these are, so that kernels are the same; else scales may span all
// rows.
inline Tensor rows_of(const Experts& experts,
                      const ExpertsInput& input,
                      const Scheme& scheme,
                      const Stream& stream) {
  if (scheme.activation) {
    return run(experts, input, stream);
  }
  const int64_t num_tokens = input.topk_ids.dim(0);
  const int64_t topk = input.topk_ids.dim(1);
  const Tensor rows = Tensor::empty({num_tokens, topk, experts.desc().hidden}, input.x.dtype());
  ExpertsInput one = input;
  one.topk_weights = Tensor::empty({num_tokens, topk}, DType::kF32);
  std::fill_n(one.topk_weights.data<float>(), num_tokens * topk, 1.0f);
  for (int64_t k = 0; k < topk; ++k) {
    one.topk_ids = Tensor::empty({num_tokens, topk}, DType::kI32);
    std::fill_n(one.topk_ids.data<int32_t>(), num_tokens * topk, -1);
    for (int64_t t = 0; t < num_tokens; ++t) {
      one.topk_ids.data<int32_t>()[t * topk + k] = input.topk_ids.data<int32_t>()[t * topk + k];
    }
    const Tensor own = apply(experts, one, stream);
    for (int64_t t = 0; t < num_tokens; ++t) {
      std::memcpy(rows[t][k].raw(), own[t].raw(), static_cast<size_t>(own[t].nbytes()));
    }
  }
  return rows;
}

// Where an implementation weights and sums rows itself, the result has the bits of kContiguous.
TEST_P(ExpertsScheme, FinalRowsHaveTheBitsOfContiguous) {
  const auto& [impl, format, scheme] = GetParam();
  for (const int64_t topk : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(topk);
    ExpertProblem p = ExpertProblemMaker(28).make({"sums", 61, 8, topk, 96, 64},
                                                  {.scheme = scheme, .format = format});
    const auto experts = make(p, impl, 5);
    if (experts->traits().weight_and_reduce != WeightAndReduceKind::kNoOp) {
      GTEST_SKIP() << "leaves its rows to prepare/finalize";
    }
    auto* ids = p.input.topk_ids.data<int32_t>();
    auto* weights = p.input.topk_weights.data<float>();
    for (int64_t i = 0; i < p.input.topk_ids.numel(); ++i) {
      ids[i] = i % 5 == 3 || i / topk == 7 ? -1 : ids[i];
      weights[i] *= i % 11 == 6 ? -1.0f : i % 13 == 5 ? 0.0f : i % 7 == 4 ? 0x1p-129f : 1.0f;
    }
    weights[0] = std::numeric_limits<float>::infinity();
    ids[0] = 0;
    const Tensor rows = rows_of(*experts, p.input, scheme, stream_of(impl, 1));
    for (const bool is_weighted : {false, true}) {
      p.input.apply_router_weight_on_input = is_weighted;
      const Tensor expected = sum_contiguous(p.input, rows);
      for (const int threads : {1, 2, 3, 5}) {
        SCOPED_TRACE(threads);
        const Stream stream = stream_of(impl, threads);
        const Tensor actual = apply(*experts, p.input, stream);
        EXPECT_TRUE(stream.device().is_cuda() ? same_numbers(actual, expected)
                                              : same_bits(actual, expected));
      }
    }
  }
}

// Selections of experts that live elsewhere add nothing, and a NaN weight stays in its token.
TEST_P(ExpertsContract, FinalRowsOfMappedExpertsAndNanWeights) {
  ExpertProblem p = ExpertProblemMaker(29).make(kTiny, base_case());
  const auto experts = make(p, impl(), 2);
  if (experts->traits().weight_and_reduce != WeightAndReduceKind::kNoOp) {
    GTEST_SKIP() << "leaves its rows to prepare/finalize";
  }
  p.input.expert_map = Tensor::empty({kTiny.num_experts}, DType::kI32);
  auto* ids = p.input.topk_ids.data<int32_t>();
  const auto is_local = [](int32_t id) { return id % 2 == 0; };
  for (int32_t e = 0; e < kTiny.num_experts; ++e) {
    p.input.expert_map.data<int32_t>()[e] = is_local(e) ? e : -1;
  }
  ids[1] = 0;
  ids[kTiny.topk] = 1;
  const Tensor rows = run(*experts, p.input, stream_of(impl(), 2));
  ExpertsInput masked = p.input;
  masked.topk_ids = p.input.topk_ids.clone();
  for (int64_t i = 0; i < masked.topk_ids.numel(); ++i) {
    auto& id = masked.topk_ids.data<int32_t>()[i];
    id = is_local(id) ? id : -1;
  }
  const Tensor expected = sum_contiguous(masked, rows);
  p.input.topk_weights.data<float>()[1] = std::bit_cast<float>(0xffffffffu);           // of token 0
  p.input.topk_weights.data<float>()[kTiny.topk] = std::bit_cast<float>(0x7f800001u);  // elsewhere
  const Tensor actual = apply(*experts, p.input, stream_of(impl(), 2));
  for (int64_t i = 0; i < kTiny.hidden; ++i) {
    ASSERT_TRUE(std::isnan(get_float(actual, i))) << i;
  }
  const auto rest = [](const Tensor& t) { return t.slice(1, t.dim(0)); };
  EXPECT_TRUE(same_bits(rest(actual), rest(expected)));
  p.input.topk_weights = {};
  EXPECT_THROW(apply(*experts, p.input, stream_of(impl(), 2)), InvalidArgument);
}

}  // namespace moebius::experts_suite
