// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// In steady state a layer call allocates nothing, as the allocator of the caller counts it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "moebius/allocator.h"
#include "problems/place.h"
#include "tests/layer/backends.h"
#include "tests/layer/quantized_layer.h"

namespace moebius::testing {
namespace {

// Counts what is asked of it, and passes it on to operator new.
class CountedHost final : public Allocator {
 public:
  void* allocate(int64_t bytes, int64_t alignment, Device, void*) override {
    ++num_allocations;
    return ::operator new(static_cast<size_t>(bytes), std::align_val_t(alignment));
  }
  void deallocate(void* data, int64_t, Device, void*) noexcept override {
    ::operator delete(data, std::align_val_t(256));
  }
  std::atomic<int64_t> num_allocations{0};
};

class SteadyState : public ::testing::Test {
 protected:
  void SetUp() override { set_allocator(Device::cpu(), allocator); }
  void TearDown() override { set_allocator(Device::cpu(), nullptr); }
  int64_t num_allocations() const { return allocator->num_allocations; }

  const std::shared_ptr<CountedHost> allocator = std::make_shared<CountedHost>();
};

constexpr int kWarmUp = 4;
constexpr int kCalls = 5;

struct Variant {
  std::string name;
  DType dtype;                     // of the layer
  const Scheme* scheme = nullptr;  // of its experts; null: plain ones, beside shared experts
  int64_t hidden() const { return scheme ? QuantizedLayer::kHidden : SmallLayer::kHidden; }
  bool brings_scales() const { return scheme && scheme->calls_bring_scales; }
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {{"f32", DType::kF32}, {"bf16", DType::kBF16}};
  for (const std::string_view scheme : {"fp8_channel_token", "fp8_block_ue8m0", "nvfp4",
                                        "mxfp4_a_mxfp4", "mxfp4_w4a16", "int4_w4a16"}) {
    all.push_back({std::string(scheme), DType::kBF16, &scheme_of(scheme)});
  }
  // Its a2_scale travels as an extra tensor of the caller.
  all.push_back({std::string(kBroughtScales[0].name), DType::kBF16, &kBroughtScales[0]});
  return all;
}

MoeLayerWeights weights_of(const Variant& variant) {
  if (variant.scheme != nullptr) {
    return QuantizedLayer::whole(*variant.scheme, variant.dtype);
  }
  return random_layer({.num_experts = SmallLayer::kExperts,
                       .experts_per_token = SmallLayer::kTopk,
                       .hidden = SmallLayer::kHidden,
                       .intermediate = SmallLayer::kIntermediate,
                       .in_dtype = variant.dtype,
                       .max_num_tokens = SmallLayer::kMaxTokens},
                      {.shared_intermediate = SmallLayer::kIntermediate});
}

MoeLayerWeights part_of(const Variant& variant, const ParallelConfig& parallel) {
  return variant.scheme != nullptr ? QuantizedLayer::share(*variant.scheme, variant.dtype, parallel)
                                   : share_of(weights_of(variant), parallel);
}

MoeLayerInput input_of(const Variant& variant, int64_t num_tokens) {
  MoeLayerInput input{random_tensor({num_tokens, variant.hidden()}, variant.dtype, 9)};
  if (variant.brings_scales()) {
    input.a2_scale = Tensor::empty({num_tokens}, DType::kF32);
    std::fill_n(input.a2_scale.data<float>(), num_tokens, 0.02f);
  }
  return input;
}

TEST_F(SteadyState, OneRankAllocatesNothing) {
  for (const Variant& variant : variants()) {
    for (const int kind : {0, 1, 2, 3}) {
      const int microbatches = 1 + kind % 2;
      const auto format = kind < 2 ? ActivationFormat::kStandard : ActivationFormat::kBatched;
      SCOPED_TRACE(variant.name + " " + std::string(name(format)) + ", micro-batches " +
                   std::to_string(microbatches));
      MoeLayerOptions options;
      options.format = format;
      options.kernel.microbatches = microbatches;
      options.kernel.min_microbatch_tokens = 1;
      const Stream stream = Stream::cpu(2);
      MoeLayer layer(weights_of(variant), options, stream);
      WorkspacePool pool;
      const MoeLayerInput input = input_of(variant, 6);
      const Tensor output = Tensor::empty(input.hidden.shape(), variant.dtype);
      int64_t before = 0;
      for (int call = 0; call < kWarmUp + kCalls; ++call) {
        if (call == kWarmUp) {
          before = num_allocations();
        }
        layer.forward(input, output, {stream, &pool});
      }
      EXPECT_GT(before, 0);
      EXPECT_EQ(num_allocations(), before);
    }
  }
}

// Every rank waits for the others between calls, so that what is counted is of calls.
TEST_F(SteadyState, RanksAllocateNothingOverAnyBackend) {
  constexpr int kRanks = 3;
  for (const All2AllBackend backend : kBackends) {
    for (const Variant& variant : variants()) {
      if (variant.brings_scales() && backend == All2AllBackend::kLowLatency) {
        continue;  // it carries no extra tensors
      }
      for (const int microbatches : {1, 2}) {
        SCOPED_TRACE(std::string(name(backend)) + " " + variant.name + ", micro-batches " +
                     std::to_string(microbatches));
        std::atomic<int64_t> before{0};
        run_thread_ranks({.num_ranks = kRanks}, [&](Group& group) {
          const auto parallel = ParallelConfig::make(1, 0, kRanks, group.rank(), true, backend);
          MoeLayerOptions options;
          options.kernel.microbatches = microbatches;
          options.kernel.min_microbatch_tokens = 1;
          const Stream stream = Stream::cpu(1);
          MoeLayer layer(part_of(variant, parallel), options, stream, &group);
          WorkspacePool pool;
          const MoeLayerInput input = input_of(variant, 4 + group.rank());
          const Tensor output = Tensor::empty(input.hidden.shape(), variant.dtype);
          for (int call = 0; call < kWarmUp + kCalls; ++call) {
            if (call == kWarmUp) {
              group.barrier("warm");
              before = num_allocations();
              group.barrier("counted");
            }
            layer.forward(input, output, {stream, &pool});
          }
          group.barrier("called");
          EXPECT_EQ(num_allocations(), before);
          group.barrier("compared");
        });
      }
    }
  }
}

TEST_F(SteadyState, ATrimmedPoolGivesAllBack) {
  WorkspacePool pool;
  const Tensor kept = pool.get(0, WorkspaceSlot::kScratch, {100}, DType::kF32);
  kept.data<float>()[99] = 3.0f;
  pool.get(1, WorkspaceSlot::kLayer, {50}, DType::kF32);
  EXPECT_GT(pool.bytes(), 0);
  const int64_t bytes = memory_statistics(Device::cpu()).bytes;
  const int64_t held = pool.bytes();
  pool.trim();
  EXPECT_EQ(pool.bytes(), 0);
  EXPECT_EQ(kept.data<float>()[99], 3.0f);  // a tensor keeps its buffer
  EXPECT_GE(memory_statistics(Device::cpu()).bytes, bytes - held);
  EXPECT_LT(memory_statistics(Device::cpu()).bytes, bytes);
  EXPECT_EQ(pool.get(0, WorkspaceSlot::kScratch, {100}, DType::kF32).numel(), 100);
}

}  // namespace
}  // namespace moebius::testing
