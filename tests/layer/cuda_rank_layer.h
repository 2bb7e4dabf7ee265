// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A small layer of one rank on a GPU, and its expected output from one rank on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "moebius/group.h"
#include "moebius/moe_layer.h"
#include "moebius/parallel_config.h"
#include "moebius/profile.h"
#include "problems/place.h"

namespace moebius::testing {

inline constexpr int64_t kExperts = 10;
inline constexpr int64_t kTopk = 3;
inline constexpr int64_t kHidden = 256;
// The reduced dimension of GEMM2; it lets GEMM2 be cut in columns.
inline constexpr int64_t kIntermediate = 128;

struct LayerKind {
  const char* name;
  All2AllBackend backend = All2AllBackend::kNone;
  int tp = 1;
  ActivationFormat format = ActivationFormat::kStandard;
  bool is_monolithic = false;
  KernelOptions kernel = {};  // min_microbatch_tokens is ignored and set to 0
  int comm_sms = 0;
  std::optional<int64_t> capacity = std::nullopt;
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;
};
inline constexpr LayerKind kCounted{.name = "counted", .backend = All2AllBackend::kHighThroughput};
// The capacity is enough for all tokens.
inline constexpr LayerKind kUncounted{
    .name = "uncounted", .backend = All2AllBackend::kHighThroughput, .capacity = 0};
inline constexpr LayerKind kOfOneRank[] = {
    {.name = "standard"},
    {.name = "batched", .format = ActivationFormat::kBatched},
    {.name = "micro-batches", .kernel = {.microbatches = 2}},
};

// A rank's share of the weights, with gated shared experts.
MoeLayerWeights weights_of(const ParallelConfig& parallel);
// Others of the same shapes and dtypes.
MoeLayerWeights other_weights_of(const ParallelConfig& parallel);

struct Expected {
  Tensor output;
  Tensor load;
};
Expected on_one_cpu(const Tensor& hidden);

// Compares row by row, within the tolerance of a layer.
void expect_rows(const Tensor& actual, const Tensor& expected);

// The layer of a rank, with what its calls need.
struct RankLayer {
  RankLayer(const LayerKind& kind,
            const ParallelConfig& parallel,
            const Place& at,
            Group* group,
            std::shared_ptr<Transports> transports = nullptr);
  // The layer of a rank that has tokens and experts of its own.
  RankLayer(const LayerKind& kind, Group& group, std::shared_ptr<Transports> transports = nullptr)
      : RankLayer(kind,
                  ParallelConfig::make(1, 0, group.size(), group.rank(), true, kind.backend),
                  Place(group.device()),
                  &group,
                  std::move(transports)) {}

  CallContext context(Profile* profile = nullptr) {
    return {place.stream, &workspaces, 0, profile};
  }
  Tensor forward(const Tensor& hidden,
                 DType output_dtype = DType::kBF16,
                 Profile* profile = nullptr) {
    const Tensor in = place.take(hidden);  // stays until the stream has read it
    const Tensor output = Tensor::empty(hidden.shape(), output_dtype, place.device());
    layer->forward(in, output, context(profile));
    const Tensor here = place.bring(output);
    layer->check();
    return here;
  }

  Place place;
  WorkspacePool workspaces;
  std::unique_ptr<MoeLayer> layer;
};

}  // namespace moebius::testing
