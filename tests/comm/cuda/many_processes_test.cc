// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High throughput of more than 64 ranks, which are processes that share one GPU: threads of a
// process would have too few hardware queues.  They take turns on the GPU, so this is slow.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <set>
#include <vector>

#include "tests/comm/cuda/sides.h"

namespace moebius::testing {
namespace {

DispatchProblem problem_of(int num_ranks) {
  DispatchProblem p{.num_ranks = num_ranks, .num_experts = 2 * num_ranks, .topk = 6, .hidden = 64};
  for (int r = 0; r < num_ranks; ++r) {
    p.tokens.push_back(r % 6);
  }
  return p;
}

// How many ranks a token goes to, and whether `rank` is one of them.
struct Copies {
  int num = 0;
  bool is_there = false;
};
Copies copies_of(const DispatchProblem& p, const RankInput& in, int64_t token, int rank) {
  std::set<int> ranks;
  for (int64_t k = 0; k < p.topk; ++k) {
    const int32_t id = in.ids.data<int32_t>()[token * p.topk + k];
    if (id >= 0) {
      ranks.insert(p.placement().rank_of(id));
    }
  }
  return {static_cast<int>(ranks.size()), ranks.count(rank) == 1};
}

void check_rows_and_sums(Group& group) {
  const int rank = group.rank();
  const DispatchProblem p = problem_of(group.size());
  const std::vector<RankInput> inputs = make_inputs(p);
  const RankInput& in = inputs[static_cast<size_t>(rank)];
  const Stream stream = Stream::cuda(group.device().index);
  const auto up = [&](const Tensor& t) { return to_device(t, stream.device(), stream); };
  const auto down = [&](const Tensor& t) { return to_device(t, Device::cpu(), stream); };
  HighThroughput transport(group, p.placement(), small_config(2), small_config(2));
  const DispatchLayout layout = transport.layout(up(in.ids), stream);
  for (int64_t t = 0; t < p.num_tokens(rank); ++t) {
    for (int r = 0; r < p.num_ranks; ++r) {
      expect_eq(int64_t{down(layout.is_token_in_rank).data<bool>()[t * p.num_ranks + r]},
                int64_t{copies_of(p, in, t, r).is_there}, "is_token_in_rank");
    }
  }
  const DispatchInput input{{up(in.x), up(in.code)}, up(in.ids), up(in.weights), 1, {}};
  for (int call = 0; call < 2; ++call) {
    const DispatchOutput output = transport.dispatch(input, stream);
    const Tensor x = down(output.payloads[0]);
    const Tensor code = down(output.payloads[1]);
    int64_t row = 0;
    for (int source = 0; source < p.num_ranks; ++source) {
      const RankInput& theirs = inputs[static_cast<size_t>(source)];
      for (int64_t t = 0; t < p.num_tokens(source); ++t) {
        if (copies_of(p, theirs, t, rank).is_there) {
          expect_le(row + 1, x.dim(0), "rows");
          expect_eq(int64_t{code.data<int32_t>()[2 * row]}, int64_t{source}, "source of a row");
          expect_eq(int64_t{code.data<int32_t>()[2 * row + 1]}, t, "token of a row");
          expect(same_bytes(x[row], theirs.x[t]), "a row differs");
          ++row;
        }
      }
    }
    expect_eq(row, x.dim(0), "rows");
    const Tensor sums = down(transport.combine(rows_of(output), *output.handle, stream).x);
    for (int64_t t = 0; t < p.num_tokens(rank); ++t) {
      const auto num = static_cast<float>(copies_of(p, in, t, rank).num);
      for (int64_t i = 0; i < p.hidden; ++i) {
        const float sum = num * get_float(in.x[t], i);
        expect(get_float(sums[t], i) == static_cast<float>(BFloat16(sum)), "a sum differs");
      }
    }
  }
  group.barrier("end");
}

class GpuManyProcesses : public ::testing::TestWithParam<int> {};

TEST_P(GpuManyProcesses, HighThroughputGivesRowsAndSums) {
  ProcessGroupOptions options{.num_ranks = GetParam(), .timeout = std::chrono::seconds(120)};
  options.devices.assign(static_cast<size_t>(GetParam()), Device::cuda(0));
  // These processes have few streams.  With the 32 hardware queues that tests ask for, some twenty
  // processes use up what a GPU has.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", /*overwrite=*/1);
  try {  // this process forks, so it may not look for GPUs itself
    run_process_ranks({}, [](Group&) { expect_ge(cuda_device_count(), 1, "GPUs"); });
  } catch (const Error&) {
    GTEST_SKIP() << "skipped: no GPU";
  }
  EXPECT_NO_THROW(run_process_ranks(options, check_rows_and_sums));
}

// More ranks than a word of a mask has bits.  Each process takes more than 1 GB of the GPU, so that
// 132 of them do not fit into 139 GB.
INSTANTIATE_TEST_SUITE_P(OneGpu, GpuManyProcesses, ::testing::Values(72, 100), [](const auto& of) {
  return "R" + std::to_string(of.param);
});

}  // namespace
}  // namespace moebius::testing
