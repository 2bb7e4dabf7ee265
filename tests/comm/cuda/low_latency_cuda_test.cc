// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs: rows and sums, bit for bit those of the CPU.
#include "comm/cuda/low_latency.h"
#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

TEST_P(LowLatencyCuda, SmallProblemsAreAsOnTheCpu) {
  for (const DispatchProblem& routing : dispatch_problems(num_ranks())) {
    SCOPED_TRACE(routing.seed);
    Problem p;
    p.routing = routing;
    p.routing.hidden = routing.hidden == 45 ? 45 : 256;
    check_all(p, 3);
  }
}

TEST_P(LowLatencyCuda, HiddenSizesOfModels) {
  for (const int64_t hidden : {2048, 2880, 7168}) {
    SCOPED_TRACE(hidden);
    Problem p = make_problem(16, 8, hidden);
    p.max_tokens = 128;
    p.routing.tokens.assign(p.routing.tokens.size(), 128);
    p.routing.tokens[0] = 7;
    check_all(p, 2);
  }
}

TEST_P(LowLatencyCuda, OddHiddenSizes) {
  for (const int64_t hidden : {1, 45, 1022, 1023, 1025, 2881}) {
    SCOPED_TRACE(hidden);
    check_all(make_problem(7, 3, hidden), 1);
  }
}

TEST_P(LowLatencyCuda, OtherTypes) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    for (const int64_t hidden : {640, 1537}) {
      SCOPED_TRACE(hidden);
      Problem p = make_problem(8, 4, hidden);
      p.dtype = dtype;
      check_all(p, 1);
    }
  }
}

TEST_P(LowLatencyCuda, TopkFromOneToThirtyTwo) {
  for (const int64_t topk : {1, 2, 5, 9, 16, 32}) {
    SCOPED_TRACE(topk);
    check_all(make_problem(40, topk, 512), 1);
  }
}

TEST_P(LowLatencyCuda, AnyGrid) {
  for (const int num_sms : {1, 2, 5, 32}) {
    SCOPED_TRACE(num_sms);
    Problem p = make_problem(24, 6, 3072);
    p.num_sms = num_sms;
    check_all(p, 1);
  }
}

TEST_P(LowLatencyCuda, AnyWayOfSendingBack) {
  for (const bool in_bulk : {true, false}) {
    for (const int unit_parts : {1, 2, 3, 100}) {
      SCOPED_TRACE(std::to_string(in_bulk) + ", " + std::to_string(unit_parts));
      combine_tuning = {in_bulk, unit_parts};
      check_all(make_problem(24, 6, 4608), 1);
    }
  }
  combine_tuning = {};
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
  for (DispatchProblem routing : dispatch_problems(num_ranks())) {
    SCOPED_TRACE(routing.seed);
    Problem p;
    p.routing = routing;
    p.sum = LowLatencySum::kRanks;
    check_all(p, 3);
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t topk : {1, 8, 32}) {
      for (const int64_t hidden : {1025, 2880}) {
        SCOPED_TRACE(hidden);
        Problem p = make_problem(40, topk, hidden);
        p.dtype = dtype;
        p.sum = LowLatencySum::kRanks;
        check_all(p, 1);
      }
    }
  }
}

TEST_P(LowLatencyCuda, OneTokenAndNone) {
  Problem p = make_problem(64, 8, 7168);
  p.max_tokens = 8;
  p.routing.tokens.assign(p.routing.tokens.size(), 1);
  check_all(p, 3);
  p.routing.tokens.back() = 0;
  check_all(p, 3);
}

}  // namespace
}  // namespace moebius::testing
