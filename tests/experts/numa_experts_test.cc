// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Where experts lie and who computes them changes no bit.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "moebius/error.h"
#include "problems/expert_problem.h"
#include "tests/conformance/experts_runs.h"
#include "tests/scoped_setting.h"

namespace moebius::experts_suite {
namespace {

using testing::ScopedSetting;

// An implementation and a scheme.
using Parameters = std::tuple<std::string, std::string>;

class NumaExperts : public ::testing::TestWithParam<Parameters> {};

TEST_P(NumaExperts, HaveTheSameBits) {
  const auto& [impl, name] = GetParam();
  for (const int64_t tokens : {1, 3, 70}) {
    const ExpertProblem p = ExpertProblemMaker(1).make({"numa", tokens, 8, 2, 256, 128},
                                                       {.scheme = scheme_of(name), .biased = true});
    if (const std::string reason = refusal(p, impl); !reason.empty()) {
      GTEST_SKIP() << "skipped: " << reason;
    }
    const Stream stream = Stream::cpu(2);
    const Tensor expected = run(*make(p, impl, 2), p.input, stream);
    for (const char* policy : {"experts", "interleave"}) {
      for (const char* nodes : {"0/1", "1/0", "0/1/2/3/4", "0-1/600", "0-1"}) {
        const ScopedSetting numa("MOEBIUS_NUMA", policy);
        const ScopedSetting pretended("MOEBIUS_NUMA_NODES", nodes);
        const auto experts = make(p, impl, 2);
        EXPECT_TRUE(same_bits(expected, run(*experts, p.input, stream)))
            << policy << " on " << nodes << ", " << tokens << " tokens";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    NumaExperts,
    ::testing::Combine(
        ::testing::Values("cpu_amx", "cpu_avx512", "cpu_portable"),
        ::testing::Values("unquantized", "int8_w8a8_token", "mxfp4_w4a16", "nvfp4_static")),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

TEST(NumaExpertsSetting, IsReadWhenExpertsAreMade) {
  const ExpertProblem p =
      ExpertProblemMaker(1).make({"numa", 1, 8, 2, 256, 128}, {.scheme = scheme_of("unquantized")});
  const ScopedSetting numa("MOEBIUS_NUMA", "everywhere");
  EXPECT_THROW(make(p, "cpu_portable", 2), InvalidArgument);
}

}  // namespace
}  // namespace moebius::experts_suite
