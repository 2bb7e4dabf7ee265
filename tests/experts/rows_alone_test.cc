// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// With tile experts a row has the same bits with any number of other rows.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "problems/expert_problem.h"
#include "tests/conformance/experts_runs.h"
#include "tests/scoped_setting.h"

namespace moebius::experts_suite {
namespace {

// These groups have more k than kernels take at once.
constexpr Scheme kWideGroups = {
    "fp8_wide_groups", std::nullopt, QuantFormat::kFp8, WeightScales::kBlock, {48, 1024}};

// An implementation, or the vectors that cpu_portable uses; and a scheme.
using Parameters = std::tuple<std::string, std::string>;

class RowsAlone : public ::testing::TestWithParam<Parameters> {};

TEST_P(RowsAlone, HaveTheSameBits) {
  const auto& [kernels, name] = GetParam();
  const bool are_vectors = !kernels.starts_with("cpu");
  const testing::ScopedSetting vectors("MOEBIUS_CPU_VECTORS", are_vectors ? kernels : "");
  const std::string impl = are_vectors ? "cpu_portable" : kernels;
  const Scheme scheme = name == kWideGroups.name ? kWideGroups : scheme_of(name);
  constexpr int64_t kTokens = 70;
  // There is one expert, and k is larger than a part of any kernel, or two groups.  There are many
  // elements, since few of the sums that differ in f32 differ in bf16, too.
  const ExpertProblem p = ExpertProblemMaker(1).make({"alone", kTokens, 1, 1, 1536, 768},
                                                     {.scheme = scheme, .biased = true});
  if (const std::string reason = refusal(p, impl); !reason.empty()) {
    GTEST_SKIP() << "skipped: " << reason;
  }
  if (are_vectors && !can_run_vectors(kernels)) {
    GTEST_SKIP() << "skipped: this processor has none of these vectors";
  }
  const Stream stream = Stream::cpu(2);
  const auto experts = make(p, impl, 2);
  const Tensor all = run(*experts, p.input, stream);
  for (const int64_t rows : {1, 2, 3, 4, 6, 8, 9, 17, 32, 33, 65}) {
    ExpertsInput input = p.input;
    input.x = p.input.x.slice(0, rows);
    input.topk_ids = p.input.topk_ids.slice(0, rows);
    input.topk_weights = p.input.topk_weights.slice(0, rows);
    EXPECT_TRUE(same_bits(all.slice(0, rows), run(*experts, input, stream))) << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    RowsAlone,
    ::testing::Combine(::testing::Values("cpu_amx", "cpu_avx512", "vnni", "avx2", "plain"),
                       ::testing::Values("unquantized",
                                         "fp8_block_ue8m0",
                                         "fp8_channel_token",
                                         "int8_w8a8_token",
                                         "int8_w8a16",
                                         "int4_w4a16",
                                         "fp8_wide_groups",
                                         "mxfp4_w4a16",
                                         "nvfp4",
                                         "nvfp4_static")),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace moebius::experts_suite
