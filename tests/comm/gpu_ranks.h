// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Groups of ranks with GPUs for tests: every kind that this machine can make.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "moebius/group.h"
#include "tests/gpu_test.h"

namespace moebius {

struct GpuRanks {
  std::string provider;  // "peer" or "nccl", which cannot have two ranks on one GPU
  int num_ranks = 1;
  int num_gpus = 1;  // rank r is on GPU r % num_gpus
  int ranks_per_node = 0;

  std::string name() const;
};
inline void PrintTo(const GpuRanks& ranks, std::ostream* out) {
  *out << ranks.name();
}

// There are 1 to 8 ranks on one GPU, and one rank per GPU on 2, 4 and 8, with either provider.
std::vector<GpuRanks> gpu_ranks();
// These, then ranks in pretended nodes.
std::vector<GpuRanks> gpu_ranks_and_nodes();

ThreadGroupOptions thread_options(const GpuRanks& ranks,
                                  std::chrono::milliseconds timeout = std::chrono::seconds(10));

// Runs the body on every rank.  Its failures and exceptions are failures of the test.
void run_gpu_ranks(const GpuRanks& ranks,
                   const std::function<void(Group&)>& body,
                   std::chrono::milliseconds timeout = std::chrono::seconds(10));

// Makes the call, which must end with a CommError that blames `peer`, if one is given.  Returns its
// message.
std::string comm_error_of(const std::function<void()>& call, int peer = -1);
void expect_contains(const std::string& message, const std::string& part);

// A TEST_P of such a fixture runs on each of gpu_ranks().  It is skipped where this machine has too
// few GPUs:
//   class X : public GpuRanksTest {};
//   INSTANTIATE_TEST_SUITE_P(All, X, on_gpu_ranks(), gpu_ranks_name);
class GpuRanksTest : public GpuTest, public ::testing::WithParamInterface<GpuRanks> {
 protected:
  void SetUp() override {
    need_gpus(GetParam().num_gpus);
    if (GetParam().provider == "nccl" && !why_no_nccl().empty()) {
      GTEST_SKIP() << "skipped: " << why_no_nccl();
    }
  }
  void run(const std::function<void(Group&)>& body) const { run_gpu_ranks(GetParam(), body); }
};

inline auto on_gpu_ranks() {
  return ::testing::ValuesIn(gpu_ranks());
}
inline auto on_gpu_ranks_and_nodes() {
  return ::testing::ValuesIn(gpu_ranks_and_nodes());
}
inline std::string gpu_ranks_name(const ::testing::TestParamInfo<GpuRanks>& info) {
  return info.param.name();
}

}  // namespace moebius
