// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One MoE layer spread over ranks, with what every rank brings to each of several calls, and the
// same layer on a single rank: the outputs that any backend must give, to the last row.
// Letters: R ranks, T tokens of a rank, K top-k, E experts, H hidden, N selections of all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "moebius/dispatch.h"
#include "moebius/experts.h"
#include "moebius/modular_kernel.h"
#include "moebius/router.h"
#include "problems/expert_problem.h"

namespace moebius::testing {

// Weights, activations and their sizes.
struct LayerScheme {
  std::string name;
  ExpertCase expert_case;  // its format is the backend's
  int64_t hidden = 256;
};

// Who computes: an entry of experts_impls(), at its own precision or as the float64 oracle.
struct LayerExperts {
  std::string_view name;
  std::string_view implementation;  // empty: the first that accepts
  Precision precision = Precision::kModel;
  DeviceType device = DeviceType::kCpu;  // of every rank; the one they are compared with is the CPU
};

// name() follows this order.
enum class LayerCall : uint8_t {
  kUneven,  // 0 to 7 tokens per rank, a tenth of the selections masked
  kOneRank,
  kOneExpert,
  kAllMasked,
  kNoTokens,
  kRepeat,  // the first call's input once more, which must give the same bits
};
std::string_view name(LayerCall call);

struct LayerScenario {
  std::string_view name;
  std::vector<LayerCall> calls;  // on one object
  int64_t topk = 3;
  bool weight_on_input = false;
  bool is_strided = false;      // expert e lives on rank e % R instead of linearly
  bool is_interleaved = false;  // both calls are prepared, then finalized in the other order
  int microbatches = 1;         // that every call is cut into, however few tokens there are
};

// What one rank brings to a call.
struct LayerInput {
  Tensor hidden;        // [T, H]
  Tensor topk_ids;      // i32 [T, K]
  Tensor topk_weights;  // f32 [T, K]
  Tensor logits;        // f32 [T, E]; the router gives these ids and weights (when routed)
};

// A selection as it is summed: what its expert made of it, and who that was.
struct LayerTerm {
  float y = 0;
  float weight = 1;
  int64_t expert = 0;
  int rank = 0;
};
// One element of the output: `terms` are a token's selections in order of slots, masked ones left
// out.  What is rounded is rounded to dtype.
using LayerSum = float (*)(std::span<const LayerTerm> terms,
                           int64_t topk,
                           DType dtype,
                           const Topology& topology);

// Which rows share a scale where one is taken of all rows of a tensor at hand.
enum class LayerScope : uint8_t {
  kWhole,     // all rows of one rank; per expert in the batched format
  kGathered,  // every rank has the rows of all tokens, and computes its experts'
  kReceived,  // a rank has the rows that its experts need
  kInFlight,  // batched, fp8 blocks are made as low_latency casts them; else as kWhole
};

class LayerProblem {
 public:
  static constexpr int64_t kMaxTokens = 8;  // per rank and call

  // routed: ids are what a router makes of logits, none masked.
  LayerProblem(const LayerScheme& scheme,
               const LayerExperts& experts,
               const LayerScenario& scenario,
               int num_ranks,
               bool routed);

  const LayerScheme& scheme() const { return scheme_; }
  const LayerExperts& experts() const { return experts_; }
  const LayerScenario& scenario() const { return scenario_; }
  const ExpertPlacement& placement() const { return placement_; }
  const LayerInput& input(size_t call, int rank) const {
    return inputs_[call][static_cast<size_t>(rank)];
  }
  const QuantConfig& quant() const { return weights_.quant; }
  const ExpertWeights& weights() const { return weights_; }
  // Top-k of the softmax, as the inputs' ids were chosen when routed.
  std::shared_ptr<const Router> make_router(Device device) const;
  // Of a rank, with its share of the weights.
  ExpertsDesc desc(int rank, ActivationFormat format) const;
  std::unique_ptr<Experts> make_experts(int rank,
                                        ActivationFormat format,
                                        const Stream& stream) const;

  // Outputs [T, H] of `rank`.
  Tensor expected(size_t call,
                  int rank,
                  ActivationFormat format,
                  LayerScope scope,
                  LayerSum sum,
                  const Topology& topology);
  // What the experts make of every selection, on one rank: [N, H], in order of rank, token, slot.
  const Tensor& selections(size_t call, ActivationFormat format, LayerScope scope);

 private:
  struct Selection;
  std::vector<Selection> all_selections(size_t call) const;
  ExpertWeights weights_of(const std::vector<int64_t>& experts) const;
  std::string_view single_rank_implementation() const;
  ModularKernel& single_rank(ActivationFormat format, LayerScope scope);
  bool casts_blocks() const;
  // Whether a scale is taken of all rows at hand, so that who has which rows matters.
  bool scales_over_rows() const;
  void compute(const std::vector<Selection>& all,
               const std::vector<int64_t>& rows,
               int only_rank,
               ActivationFormat format,
               LayerScope scope,
               const Tensor& y);
  void compute_microbatch(const std::vector<Selection>& all,
                          const std::vector<int64_t>& rows,
                          ActivationFormat format,
                          LayerScope scope,
                          const Tensor& y);

  LayerScheme scheme_;
  LayerExperts experts_;
  LayerScenario scenario_;
  ExpertsDesc desc_;  // standard, all experts on one rank
  ExpertWeights weights_;
  ExpertPlacement placement_;
  std::vector<std::vector<LayerInput>> inputs_;  // [call][rank]
  std::map<std::pair<ActivationFormat, LayerScope>, ModularKernel> single_rank_;
  std::map<std::tuple<size_t, ActivationFormat, LayerScope>, Tensor> selections_;
};

}  // namespace moebius::testing
