// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers with quantized experts on GPUs: in steady state they allocate nothing, and a static scale
// for each token's rows of GEMM2 goes where the token goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "problems/place.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/quantized_layer.h"

namespace moebius::testing {
namespace {

constexpr int kWarmUp = 6;
constexpr int kCalls = 4;

std::vector<Scheme> schemes() {
  std::vector<Scheme> all(std::begin(kBroughtScales), std::end(kBroughtScales));
  for (const std::string_view name : {"fp8_channel_token", "fp8_block_ue8m0", "nvfp4",
                                      "mxfp4_a_mxfp4", "mxfp4_w4a16", "int4_w4a16"}) {
    all.push_back(scheme_of(name));
  }
  return all;
}

MoeLayerInput input_of(const Scheme& scheme, int64_t num_tokens, int64_t first = 0) {
  MoeLayerInput input{random_tensor({num_tokens, QuantizedLayer::kHidden}, DType::kBF16, 9)};
  if (scheme.calls_bring_scales) {
    input.a2_scale = Tensor::empty({num_tokens}, DType::kF32);
    for (int64_t t = 0; t < num_tokens; ++t) {
      input.a2_scale.data<float>()[t] =
          0.002f * (1.0f + 0.37f * static_cast<float>((first + t) % 5));
    }
  }
  return input;
}

MoeLayerInput placed(const Place& place, MoeLayerInput input) {
  input.hidden = place.take(input.hidden);
  input.a2_scale = place.take(input.a2_scale);
  return input;
}

Tensor on_one_cpu(const Scheme& scheme, const MoeLayerInput& input) {
  const Stream stream = Stream::cpu(2);
  MoeLayer layer(QuantizedLayer::whole(scheme, DType::kBF16), {}, stream);
  WorkspacePool pool;
  const Tensor output = Tensor::empty(input.hidden.shape(), DType::kBF16);
  layer.forward(input, output, {stream, &pool});
  return output;
}

class CudaQuantizedLayer : public GpuTest {};

TEST_F(CudaQuantizedLayer, AllocatesNothingInSteadyState) {
  const Place place(Device::cuda(0));
  for (const Scheme& scheme : schemes()) {
    for (const ActivationFormat format :
         {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
      SCOPED_TRACE(std::string(scheme.name) + " " + std::string(name(format)));
      const MoeLayerInput input = input_of(scheme, 7);
      const MoeLayerInput there = placed(place, input);
      MoeLayerOptions options;
      options.format = format;
      MoeLayer layer(QuantizedLayer::whole(scheme, DType::kBF16), options, place.stream);
      WorkspacePool pool;
      const Tensor output = Tensor::empty(there.hidden.shape(), DType::kBF16, Device::cuda(0));
      int64_t before = 0;
      for (int call = 0; call < kWarmUp + kCalls; ++call) {
        if (call == kWarmUp) {
          before = num_allocations(1);
        }
        layer.forward(there, output, {place.stream, &pool});
      }
      place.stream.synchronize();
      EXPECT_EQ(num_allocations(1), before);
      EXPECT_LE(relative_error(place.bring(output), on_one_cpu(scheme, input)),
                layer_tolerance(layer.kernel().experts().quant()));
    }
  }
}

class CudaQuantizedLayerRanks : public GpuRanksTest {};

// Every rank waits for the others, so that what is counted is of calls.
TEST_P(CudaQuantizedLayerRanks, BroughtScalesTravelAndNothingIsAllocated) {
  for (const Scheme& scheme : kBroughtScales) {
    for (const All2AllBackend backend :
         {All2AllBackend::kAllGatherReduceScatter, All2AllBackend::kHighThroughput}) {
      SCOPED_TRACE(std::string(scheme.name) + " " + std::string(name(backend)));
      std::atomic<int64_t> before{0};
      run([&](Group& group) {
        const auto parallel = ParallelConfig::make(1, 0, group.size(), group.rank(), true, backend);
        const Place place(group.device());
        const MoeLayerInput input = input_of(scheme, 5, group.rank());
        const MoeLayerInput there = placed(place, input);
        MoeLayer layer(QuantizedLayer::share(scheme, DType::kBF16, parallel), {}, place.stream,
                       &group);
        WorkspacePool pool;
        const Tensor output =
            Tensor::empty(there.hidden.shape(), DType::kBF16, there.hidden.device());
        for (int call = 0; call < kWarmUp + kCalls; ++call) {
          if (call == kWarmUp) {
            group.barrier("warm");
            before = num_allocations(GetParam().num_gpus);
            group.barrier("counted");
          }
          layer.forward(there, output, {place.stream, &pool});
        }
        place.stream.synchronize();
        group.barrier("called");
        EXPECT_EQ(num_allocations(GetParam().num_gpus), before);
        group.barrier("compared");
        layer.check();
        EXPECT_LE(relative_error(place.bring(output), on_one_cpu(scheme, input)),
                  layer_tolerance(layer.kernel().experts().quant()));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaQuantizedLayerRanks, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
