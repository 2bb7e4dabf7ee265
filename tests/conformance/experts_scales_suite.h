// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of the experts stage for calls that bring the scales of GEMM2's rows
// (QuantDesc::calls_bring_scales), run for every entry of experts_impls().
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tests/conformance/experts_suite.h"
#include "tests/error_text.h"

namespace moebius::experts_suite {

TEST_P(ExpertsContract, BroughtScalesAgreeWithRef) {
  const Problem many = {"many", 347, 2, 1, 128, 96};
  const Problem odd = {"odd", 9, 3, 2, 65, 31};
  std::vector<Problem> problems(std::begin(kTestProblems), std::end(kTestProblems));
  problems.push_back(many);
  problems.push_back(odd);
  for (const Scheme& scheme : kBroughtScales) {
    for (const Problem& problem : problems) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        for (const int64_t num_adapters : {0, 3}) {
          SCOPED_TRACE(std::string(scheme.name) + " " + std::string(problem.name) + " " +
                       std::string(name(dtype)) + " adapters " + std::to_string(num_adapters));
          ExpertCase c = base_case(scheme);
          c.dtype = dtype;
          c.biased = true;
          c.num_adapters = num_adapters;
          c.lora_rank = num_adapters > 0 ? 4 : 0;
          expect_agrees(ExpertProblemMaker(31).make(problem, c), scheme, impl());
        }
      }
    }
  }
}

// The rows of GEMM2 in fp8 are what a static scale for all rows gives, each row for its own scale.
// Powers of two are exact in both, however they are applied.
TEST_P(ExpertsContract, EveryRowTakesItsBroughtScale) {
  constexpr float kScales[] = {0x1p-7f, 0x1p-5f, 0x1p-3f};
  ExpertCase c = base_case(kBroughtScales[0]);
  ExpertProblem p = ExpertProblemMaker(32).make(kTiny, c);
  auto* scales = p.input.a2_scale.data<float>();
  for (int64_t i = 0; i < p.input.a2_scale.numel(); ++i) {
    scales[i] = kScales[i % 3];
  }
  const Tensor actual = run(p, impl());
  const int64_t rows_per_scale = is_standard() ? kTiny.topk : 1;
  const Shape rows_shape{actual.numel() / kTiny.hidden, kTiny.hidden};
  for (int64_t s = 0; s < 3; ++s) {
    ExpertProblem whole = p;
    whole.input.a2_scale = {};
    QuantDesc& a2 = whole.weights.quant.a2;
    a2.calls_bring_scales = false;
    a2.shape = GroupShape::per_tensor();
    a2.scale = Tensor::empty({1}, DType::kF32);
    a2.scale.data<float>()[0] = kScales[s];
    const Tensor expected = run(whole, impl());
    int64_t num_compared = 0;
    for (int64_t r = 0; r < rows_shape[0]; ++r) {
      const bool is_computed =
          is_standard() ||
          r % kTiny.num_tokens < p.input.expert_num_tokens.data<int32_t>()[r / kTiny.num_tokens];
      if (r / rows_per_scale % 3 != s || !is_computed) {
        continue;
      }
      const Tensor row = actual.view(rows_shape)[r];
      const Tensor same = expected.view(rows_shape)[r];
      ++num_compared;
      if (stream_of(impl(), 1).device().is_cpu()) {
        EXPECT_TRUE(same_bits(row, same)) << r;
      } else {  // another kernel may sum in another order
        EXPECT_LE(relative_error(row, same), tolerance_of(p, c.scheme, impl())) << r;
      }
    }
    EXPECT_GT(num_compared, 0);
  }
}

TEST_P(ExpertsContract, BroughtScalesGiveTheSameBitsForAnyNumberOfThreads) {
  for (const Scheme& scheme : kBroughtScales) {
    const ExpertProblem p =
        ExpertProblemMaker(33).make({"threads", 83, 4, 2, 288, 160}, base_case(scheme));
    const Tensor once = run_valid_rows(p, impl(), 1);
    for (const int threads : {2, 3, 5}) {
      EXPECT_TRUE(same_bits(once, run_valid_rows(p, impl(), threads))) << threads;
    }
  }
}

TEST_P(ExpertsContract, BroughtScalesThatDoNotFitAreRefused) {
  const ExpertProblem p = ExpertProblemMaker(34).make(kTiny, base_case(kBroughtScales[0]));
  const auto experts = make(p, impl(), 1);
  const auto message_of = [&](const Tensor& a2_scale) {
    ExpertsInput input = p.input;
    input.a2_scale = a2_scale;
    return testing::message_of([&] { apply(*experts, input, stream_of(impl(), 1)); });
  };
  testing::expect_mentions(message_of({}), "a2_scale is missing");
  testing::expect_mentions(message_of(Tensor::zeros({kTiny.num_tokens + 1}, DType::kF32)),
                           {"a2_scale is", std::to_string(kTiny.num_tokens + 1)});
  const ExpertProblem plain = ExpertProblemMaker(34).make(kTiny, base_case());
  ExpertsInput input = plain.input;
  input.a2_scale = p.input.a2_scale;
  EXPECT_THROW(apply(*make(plain, impl(), 1), input, stream_of(impl(), 1)), InvalidArgument);
  if (stream_of(impl(), 1).device().is_cuda()) {
    return;  // values are not checked there
  }
  for (const float value : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
    const Tensor scales = p.input.a2_scale.clone();
    scales.data<float>()[0] = value;  // of token 0, or of the first row of expert 0
    testing::expect_mentions(message_of(scales),
                             is_standard() ? "a2_scale[0] is" : "a2_scale[0, 0] is");
  }
}

}  // namespace moebius::experts_suite
