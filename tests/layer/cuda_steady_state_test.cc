// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// In steady state a layer call on a GPU allocates nothing there, and nothing on the host.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/comm/gpu_ranks.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr int kWarmUp = 6;
constexpr int kCalls = 6;

class CudaSteadyState : public GpuTest {};

TEST_F(CudaSteadyState, OneRankAllocatesNothing) {
  for (const LayerKind& kind : kOfOneRank) {
    for (const int64_t num_tokens : {1, 7, 300}) {
      SCOPED_TRACE(std::string(kind.name) + ", tokens " + std::to_string(num_tokens));
      RankLayer rank(kind, ParallelConfig(), Place(Device::cuda(0)), nullptr);
      const Tensor in = rank.place.take(random_tensor({num_tokens, kHidden}, DType::kBF16, 3));
      const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
      int64_t before = 0;
      for (int call = 0; call < kWarmUp + kCalls; ++call) {
        if (call == kWarmUp) {
          before = num_allocations(1);
        }
        rank.layer->forward(in, out, rank.context());
      }
      rank.place.stream.synchronize();
      EXPECT_EQ(num_allocations(1), before);
    }
  }
}

class CudaSteadyStateRanks : public GpuRanksTest {};

// Every rank waits for the others, so that what is counted is of calls.
TEST_P(CudaSteadyStateRanks, NoBackendAllocates) {
  const LayerKind kinds[] = {
      {.name = "allgather", .backend = All2AllBackend::kAllGatherReduceScatter},
      {.name = "low latency",
       .backend = All2AllBackend::kLowLatency,
       .format = ActivationFormat::kBatched},
      kCounted,
      kUncounted,
      {.name = "micro-batches",
       .backend = All2AllBackend::kHighThroughput,
       .kernel = {.microbatches = 2}},
  };
  for (const LayerKind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    std::atomic<int64_t> before{0};
    run([&](Group& group) {
      RankLayer rank(kind, group);
      const Tensor in = rank.place.take(random_tensor({6, kHidden}, DType::kBF16, group.rank()));
      const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
      for (int call = 0; call < kWarmUp + kCalls; ++call) {
        if (call == kWarmUp) {
          group.barrier("warm");
          before = num_allocations(GetParam().num_gpus);
          group.barrier("counted");
        }
        rank.layer->forward(in, out, rank.context());
      }
      rank.place.stream.synchronize();
      group.barrier("called");
      EXPECT_EQ(num_allocations(GetParam().num_gpus), before);
      group.barrier("compared");
      rank.layer->check();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaSteadyStateRanks, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
