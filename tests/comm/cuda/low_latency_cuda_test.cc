// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs: rows and sums are bit for bit those of the CPU.
#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

TEST_P(LowLatencyCuda, SmallProblemsAreAsOnTheCpu) {
  std::vector<Problem> problems;
  for (const DispatchProblem& routing : dispatch_problems(num_ranks())) {
    Problem& p = problems.emplace_back();
    p.routing = routing;
    p.routing.hidden = routing.hidden == 45 ? 45 : 256;
  }
  check_all(problems, 3);
}

TEST_P(LowLatencyCuda, HiddenSizesOfModels) {
  std::vector<Problem> problems;
  for (const int64_t hidden : {2048, 2880, 7168}) {
    Problem& p = problems.emplace_back(make_problem(16, 8, hidden));
    p.max_tokens = 128;
    p.routing.tokens.assign(p.routing.tokens.size(), 128);
    p.routing.tokens[0] = 7;
  }
  check_all(problems, 2);
}

TEST_P(LowLatencyCuda, OddHiddenSizes) {
  std::vector<Problem> problems;
  for (const int64_t hidden : {1, 45, 1022, 1023, 1025, 2881}) {
    problems.push_back(make_problem(7, 3, hidden));
  }
  check_all(problems, 1);
}

TEST_P(LowLatencyCuda, OtherTypes) {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    for (const int64_t hidden : {640, 1537}) {
      problems.emplace_back(make_problem(8, 4, hidden)).dtype = dtype;
    }
  }
  check_all(problems, 1);
}

TEST_P(LowLatencyCuda, TopkFromOneToThirtyTwo) {
  std::vector<Problem> problems;
  for (const int64_t topk : {1, 2, 5, 9, 16, 32}) {
    problems.push_back(make_problem(40, topk, 512));
  }
  check_all(problems, 1);
}

TEST_P(LowLatencyCuda, AnyGrid) {
  std::vector<Problem> problems;
  for (const int num_sms : {1, 2, 5, 32}) {
    problems.emplace_back(make_problem(24, 6, 3072)).num_sms = num_sms;
  }
  check_all(problems, 1);
}

TEST_P(LowLatencyCuda, AnyWayOfSendingBack) {
  std::vector<Problem> problems;
  for (const bool in_bulk : {true, false}) {
    for (const int unit_parts : {1, 2, 3, 100}) {
      problems.emplace_back(make_problem(24, 6, 4608)).tuning = {in_bulk, unit_parts};
    }
  }
  check_all(problems, 1);
}

TEST_P(LowLatencyCuda, SumsOfRanksAreAsOnTheCpu) {
  if (!is_one_node()) {
    Problem p = make_problem(8, 4, 256);
    p.sum = LowLatencySum::kRanks;
    run_gpu_ranks(GetParam(), [&](Group& group) {
      EXPECT_THROW(LowLatency(group, p.routing.placement(), p.options()), Unsupported);
    });
    return;
  }
  std::vector<Problem> small;
  for (const DispatchProblem& routing : dispatch_problems(num_ranks())) {
    Problem& p = small.emplace_back();
    p.routing = routing;
    p.sum = LowLatencySum::kRanks;
  }
  check_all(small, 3);
  std::vector<Problem> large;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t topk : {1, 8, 32}) {
      for (const int64_t hidden : {1025, 2880}) {
        Problem& p = large.emplace_back(make_problem(40, topk, hidden));
        p.dtype = dtype;
        p.sum = LowLatencySum::kRanks;
      }
    }
  }
  check_all(large, 1);
}

TEST_P(LowLatencyCuda, OneTokenAndNone) {
  Problem p = make_problem(64, 8, 7168);
  p.max_tokens = 8;
  p.routing.tokens.assign(p.routing.tokens.size(), 1);
  Problem none = p;
  none.routing.tokens.back() = 0;
  check_all({p, none}, 3);
}

}  // namespace
}  // namespace moebius::testing
