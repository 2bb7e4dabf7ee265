// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers whose calls bring a static scale for each token's rows of GEMM2.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "moebius/shared_experts.h"
#include "problems/place.h"
#include "tests/layer/backends.h"
#include "tests/layer/quantized_layer.h"

namespace moebius::testing {
namespace {

constexpr DType kDType = DType::kF32;  // so that only the order of sums can differ
constexpr int kRanks = 3;

int64_t tokens_of(int rank) {
  return 3 + rank;
}
int64_t first_token(int rank) {
  int64_t first = 0;
  for (int r = 0; r < rank; ++r) {
    first += tokens_of(r);
  }
  return first;
}
Tensor all_tokens() {
  return random_tensor({first_token(kRanks), QuantizedLayer::kHidden}, kDType, 9);
}

// Scales that are no powers of two apart, so that a token with another one's would be seen.
Tensor all_scales() {
  const Tensor scales = Tensor::empty({first_token(kRanks)}, DType::kF32);
  for (int64_t t = 0; t < scales.numel(); ++t) {
    scales.data<float>()[t] = 0.002f * (1.0f + 0.37f * static_cast<float>(t % 5));
  }
  return scales;
}

MoeLayerOptions options_of(ActivationFormat format = ActivationFormat::kStandard) {
  MoeLayerOptions options = SmallLayer::options();
  options.format = format;
  return options;
}

Tensor call(MoeLayer& layer, const Tensor& hidden, const Tensor& a2_scale, const Stream& stream) {
  WorkspacePool pool;
  const Tensor output = Tensor::empty(hidden.shape(), kDType);
  poison(output);
  layer.forward({.hidden = hidden, .a2_scale = a2_scale}, output, {stream, &pool});
  return output;
}

// The output for these tokens, on one rank.
Tensor alone(const Scheme& scheme, const Tensor& hidden, const Tensor& a2_scale) {
  const Stream stream = Stream::cpu(1);
  MoeLayer layer(QuantizedLayer::whole(scheme, kDType), options_of(), stream);
  return call(layer, hidden, a2_scale, stream);
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double difference = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    difference = std::max<double>(difference, std::abs(get_float(a, i) - get_float(b, i)));
  }
  return difference;
}
constexpr double kTolerance = 1e-5;  // of sums in f32, which are about 1

TEST(A2Scale, EveryTokenHasItsOwn) {
  for (const Scheme& scheme : kBroughtScales) {
    SCOPED_TRACE(scheme.name);
    const Tensor hidden = all_tokens();
    const Tensor scales = all_scales();
    const Tensor together = alone(scheme, hidden, scales);
    for (int64_t t = 0; t < hidden.dim(0); ++t) {
      const Tensor row = alone(scheme, hidden.slice(t, t + 1), scales.slice(t, t + 1));
      EXPECT_LE(largest_difference(together.slice(t, t + 1), row), kTolerance) << t;
      const int64_t other = (t + 1) % scales.numel();
      const Tensor wrong = alone(scheme, hidden.slice(t, t + 1), scales.slice(other, other + 1));
      EXPECT_GT(largest_difference(row, wrong), 100 * kTolerance) << t;
    }
  }
}

TEST(A2Scale, BatchedRowsHaveThoseOfTheirTokens) {
  const Stream stream = Stream::cpu(1);
  const Tensor hidden = all_tokens().slice(0, QuantizedLayer::kMaxTokens);
  const Tensor scales = all_scales().slice(0, QuantizedLayer::kMaxTokens);
  for (const Scheme& scheme : kBroughtScales) {
    SCOPED_TRACE(scheme.name);
    MoeLayer layer(QuantizedLayer::whole(scheme, kDType), options_of(ActivationFormat::kBatched),
                   stream);
    EXPECT_LE(
        largest_difference(call(layer, hidden, scales, stream), alone(scheme, hidden, scales)),
        kTolerance);
  }
}

TEST(A2Scale, GoesWhereTheTokenGoes) {
  const Tensor hidden = all_tokens();
  const Tensor scales = all_scales();
  for (const Scheme& scheme : kBroughtScales) {
    const Tensor expected = alone(scheme, hidden, scales);
    for (const All2AllBackend backend :
         {All2AllBackend::kAllGatherReduceScatter, All2AllBackend::kHighThroughput}) {
      for (const int microbatches : {1, 2}) {
        for (const int64_t chunk_tokens : {0, 2}) {
          SCOPED_TRACE(std::string(scheme.name) + " " + std::string(name(backend)) +
                       " micro-batches " + std::to_string(microbatches) + " chunks of " +
                       std::to_string(chunk_tokens));
          run_thread_ranks({.num_ranks = kRanks}, [&](Group& group) {
            const auto parallel = ParallelConfig::make(1, 0, kRanks, group.rank(), true, backend);
            MoeLayerOptions options = options_of();
            options.kernel.microbatches = microbatches;
            options.kernel.min_microbatch_tokens = 1;
            options.kernel.chunk_tokens = chunk_tokens;
            const Stream stream = Stream::cpu(1);
            MoeLayer layer(QuantizedLayer::share(scheme, kDType, parallel), options, stream,
                           &group);
            const int64_t begin = first_token(group.rank());
            const int64_t end = begin + tokens_of(group.rank());
            const Tensor output =
                call(layer, hidden.slice(begin, end), scales.slice(begin, end), stream);
            EXPECT_LE(largest_difference(output, expected.slice(begin, end)), kTolerance);
          });
        }
      }
    }
  }
}

TEST(A2Scale, IsRefusedWhereItCannotTravel) {
  run_thread_ranks({.num_ranks = 2}, [](Group& group) {
    const auto parallel =
        ParallelConfig::make(1, 0, 2, group.rank(), true, All2AllBackend::kLowLatency);
    expect_error({"low_latency", "a2_scale", "its messages have room"}, [&] {
      MoeLayer(QuantizedLayer::share(kBroughtScales[0], DType::kBF16, parallel), {}, Stream::cpu(1),
               &group);
    });
  });
}

TEST(A2Scale, IsGivenWhereExpertsTakeItAndNowhereElse) {
  const Stream stream = Stream::cpu(1);
  const Tensor hidden = all_tokens();
  MoeLayer taking(QuantizedLayer::whole(kBroughtScales[0], kDType), options_of(), stream);
  MoeLayer plain(QuantizedLayer::whole(scheme_of("fp8_channel_token"), kDType), options_of(),
                 stream);
  expect_error({"a2_scale is missing", "cpu_portable"}, [&] { call(taking, hidden, {}, stream); });
  expect_error({"a2_scale is given", "cpu_portable"},
               [&] { call(plain, hidden, all_scales(), stream); });
  expect_error({"a2_scale", "[1]", "[12]"},
               [&] { call(taking, hidden, all_scales().slice(0, 1), stream); });
  ExpertsDesc shared;
  shared.num_experts = shared.num_local_experts = 1;
  shared.hidden = QuantizedLayer::kHidden;
  shared.intermediate = QuantizedLayer::kIntermediate;
  shared.format = ActivationFormat::kBatched;
  const ExpertWeights weights =
      ExpertProblemMaker(6).make_weights(shared, {.scheme = kBroughtScales[0]});
  expect_error({"shared experts take no a2_scale"},
               [&] { SharedExperts(make_experts(shared, weights, stream), {}); });
}

}  // namespace
}  // namespace moebius::testing
