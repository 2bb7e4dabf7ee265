// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers on GPUs that share a transport, and calls in steps: the bits are those of forward(), also
// with calls of two layers in flight; many layers take the memory of one; and peers of a rank that
// drops a call do not wait for ever.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "moebius/all2all.h"
#include "moebius/transports.h"
#include "problems/place.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

class CudaSteps : public GpuRanksTest {};

std::vector<LayerKind> step_kinds() {
  std::vector<LayerKind> kinds = {
      kCounted,
      kUncounted,
      {.name = "low latency", .backend = All2AllBackend::kLowLatency},
      {.name = "gathered", .backend = All2AllBackend::kAllGatherReduceScatter}};
  for (const LayerKind& kind : std::vector(kinds)) {
    LayerKind cut = kind;
    cut.kernel.microbatches = 2;
    kinds.push_back(cut);
  }
  return kinds;
}

// One call of a layer that is driven in steps, on a given stream.
struct SteppedCall {
  Tensor in;
  Tensor out;
  LayerCall call;

  SteppedCall(RankLayer& rank, const Tensor& hidden, const Stream& stream)
      : in(rank.place.take(hidden)),
        out(Tensor::empty(hidden.shape(), DType::kBF16, rank.place.device())),
        call(rank.layer->start(in, out, {stream, &rank.workspaces})) {}
};

TEST_P(CudaSteps, GiveTheBitsOfForward) {
  run([](Group& group) {
    for (const LayerKind& kind : step_kinds()) {
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(kind.kernel.microbatches));
      RankLayer layer(kind, group);
      for (const int64_t num_tokens : {1, 8, 13}) {
        const Tensor hidden =
            random_tensor({num_tokens, kHidden}, DType::kBF16, 100 * group.rank() + num_tokens);
        const Tensor expected = layer.forward(hidden);
        for (int repeat = 0; repeat < 2; ++repeat) {
          SteppedCall stepped(layer, hidden, layer.place.stream);
          int points = 0;
          while (stepped.call.step()) {
            ++points;
          }
          EXPECT_EQ(points % (2 * kind.kernel.microbatches), 0);
          EXPECT_GT(points, 0);
          expect_same_bits(layer.place.bring(stepped.out), expected);
          layer.layer->check();
        }
      }
      group.barrier("end");
    }
  });
}

// Calls of two layers on one transport and one stream, whose steps alternate.
TEST_P(CudaSteps, OfTwoLayersInFlightGiveTheBitsOfForward) {
  run([](Group& group) {
    for (const LayerKind& kind : step_kinds()) {
      if (kind.backend == All2AllBackend::kLowLatency && kind.kernel.microbatches > 1) {
        continue;  // four results would be alive
      }
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(kind.kernel.microbatches));
      const auto transports = std::make_shared<Transports>(group);
      RankLayer first(kind, group, transports);
      RankLayer second(kind, group, transports);
      const auto hidden = [&](int64_t seed) {
        return random_tensor({8, kHidden}, DType::kBF16, 100 * group.rank() + seed);
      };
      const Tensor expected_first = first.forward(hidden(1));
      const Tensor expected_second = second.forward(hidden(2));
      for (int repeat = 0; repeat < 5; ++repeat) {
        SteppedCall a(first, hidden(1), first.place.stream);
        SteppedCall b(second, hidden(2), first.place.stream);
        bool more_of_a = true;
        bool more_of_b = true;
        while (more_of_a || more_of_b) {
          more_of_a = a.call.step();
          more_of_b = b.call.step();
        }
        expect_same_bits(first.place.bring(a.out), expected_first);
        expect_same_bits(first.place.bring(b.out), expected_second);
        first.layer->check();
      }
      group.barrier("end");
    }
  });
}

int64_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

// 64 backends of prepare/finalize, each with a dispatch and a combine, take the memory of the
// first.
TEST_P(CudaSteps, SixtyFourLayersTakeTheMemoryOfOneTransport) {
  constexpr int64_t kTokens = 256;
  constexpr int64_t kWide = 4096;
  constexpr int64_t kSlots = 2;
  constexpr int kLayers = 64;
  run([](Group& group) {
    const Place place(group.device());
    const auto placement = ExpertPlacement::linear(2 * group.size(), group.size());
    WorkspacePool pool;
    const CallContext context{place.stream, &pool};
    QuantConfig quant;
    PrepareInput input;
    input.hidden = place.take(random_tensor({kTokens, kWide}, DType::kBF16, group.rank()));
    input.topk_ids = place.take(random_ids(kTokens, kSlots, 2 * group.size(), 1));
    input.topk_weights = place.take(random_tensor({kTokens, kSlots}, DType::kF32, 2));
    input.num_experts = 2 * group.size();
    input.quant = &quant;
    const Tensor output = Tensor::empty({kTokens, kWide}, DType::kBF16, place.device());
    for (const bool is_low_latency : {false, true}) {
      SCOPED_TRACE(is_low_latency ? "low latency" : "high throughput");
      Transports transports(group);
      std::vector<std::unique_ptr<PrepareFinalize>> layers;
      const auto add_layer = [&] {
        layers.push_back(
            is_low_latency
                ? make_low_latency(transports.low_latency(placement, {kTokens, kWide, kSlots}))
                : make_high_throughput(transports.high_throughput(placement)));
      };
      const auto reduce = make_weight_and_reduce(is_low_latency ? WeightAndReduceKind::kDelegate
                                                                : WeightAndReduceKind::kNoOp);
      const auto call_all = [&] {
        for (const auto& layer : layers) {
          const PrepareResult prepared = layer->prepare(input, context);
          FinalizeInput done;
          done.output = output;
          done.expert_output = prepared.x;
          done.topk_ids = prepared.topk_ids;
          done.topk_weights = prepared.topk_weights;
          done.weight_and_reduce = reduce.get();
          layer->finalize(done, context);
        }
        place.stream.synchronize();
        group.barrier("all layers are called");
      };
      group.barrier("before");
      const int64_t before = free_bytes();
      group.barrier("free memory is read");
      add_layer();
      call_all();
      call_all();  // makes low latency's second result
      const int64_t taken = before - free_bytes();
      const int64_t bytes = transports.bytes();
      group.barrier("memory of one layer is read");
      while (static_cast<int>(layers.size()) < kLayers) {
        add_layer();
      }
      call_all();
      call_all();
      const int64_t taken_by_all = before - free_bytes();
      group.barrier("memory of all layers is read");
      EXPECT_GE(bytes, kTokens * kWide * 2);
      EXPECT_LE(transports.bytes(), bytes + bytes / 10);
      if (taken > 0) {  // else the pools had the memory
        EXPECT_LE(taken_by_all, taken + taken / 10);
      }
      layers.front()->check();
    }
  });
}

TEST_P(CudaSteps, BytesOfHighThroughputAreTheHintAndLittleMore) {
  run([](Group& group) {
    const Place place(group.device());
    HighThroughput transport(group, ExpertPlacement::linear(2 * group.size(), group.size()));
    constexpr int64_t kTokens = 512;
    constexpr int64_t kWide = 2048;
    DispatchInput input;
    input.payloads = {place.take(random_tensor({kTokens, kWide}, DType::kBF16, 1))};
    input.topk_ids = place.take(random_ids(kTokens, 2, 2 * group.size(), 2));
    input.topk_weights = place.take(random_tensor({kTokens, 2}, DType::kF32, 3));
    const DispatchOutput output = transport.dispatch(input, place.stream);
    CombineInput back;
    back.x = output.payloads[0];
    transport.combine(back, *output.handle, place.stream);
    place.stream.synchronize();
    const Tensor counts =
        place.bring(transport.layout(input.topk_ids, place.stream).tokens_per_rank);
    int64_t sent = 0;
    for (int r = 0; r < group.size(); ++r) {
      sent += r == group.rank() ? 0 : counts.data<int32_t>()[r];
    }
    HighThroughputNeeds needs{.payload_row_bytes = {2 * kWide}, .topk = 2};
    needs.rows = output.handle->most_rows();
    needs.combine_row_bytes = 2 * kWide;
    needs.combine_copies = all_reduce_max(group, "copies", sent);
    const int64_t hint = HighThroughput::size_hint(needs, transport.placement(), group.device());
    EXPECT_GE(transport.bytes(), hint);
    const int64_t result = kTokens * kWide * 2;  // of combine, in a buffer of the transport
    EXPECT_LE(transport.bytes(), hint + result * 5 / 4 + (int64_t{4} << 20));
    group.barrier("end");
  });
}

TEST_P(CudaSteps, PeersOfADroppedCallDoNotWaitForEver) {
  if (GetParam().num_ranks == 1) {
    GTEST_SKIP() << "skipped: one rank has no peers";
  }
  constexpr int kGuilty = 1;
  for (const LayerKind& kind :
       {kCounted, LayerKind{.name = "low latency", .backend = All2AllBackend::kLowLatency}}) {
    SCOPED_TRACE(kind.name);
    run_gpu_ranks(
        GetParam(),
        [&](Group& group) {
          RankLayer layer(kind, group);
          const Tensor hidden = random_tensor({8, kHidden}, DType::kBF16, group.rank());
          layer.forward(hidden);
          SteppedCall stepped(layer, hidden, layer.place.stream);
          EXPECT_TRUE(stepped.call.step());
          if (group.rank() == kGuilty) {
            stepped.call = LayerCall();
            layer.place.stream.synchronize();
            return;
          }
          comm_error_of(
              [&] {
                stepped.call.finish();
                layer.place.stream.synchronize();
                layer.layer->check();
                layer.forward(hidden);
              },
              kGuilty);
        },
        std::chrono::seconds(2));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaSteps, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
