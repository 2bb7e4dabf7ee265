// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// An MoE layer spread over ranks, with the inputs of every rank to several calls, and the same
// layer on a single rank, which gives the outputs that any backend must have.
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

// The weights' scheme, the activation and the hidden size.
struct LayerScheme {
  std::string name;
  ExpertCase expert_case;  // its format is not used: the backend decides
  int64_t hidden = 256;
};

// The experts that compute: an entry of experts_impls(), at its own precision or as the float64
// oracle.
struct LayerExperts {
  std::string_view name;
  std::string_view implementation;  // empty: the first that accepts
  Precision precision = Precision::kModel;
  DeviceType device = DeviceType::kCpu;  // of every rank; the reference is always on the CPU
};

// name() follows this order.
enum class LayerCall : uint8_t {
  kUneven,  // 0 to 7 tokens per rank, a tenth of the selections masked
  kOneRank,
  kOneExpert,
  kAllMasked,
  kNoTokens,
  kRepeat,  // the first call's input again, which must give the same bits
};
std::string_view name(LayerCall call);

struct LayerScenario {
  std::string_view name;
  std::vector<LayerCall> calls;  // of one object
  int64_t topk = 3;
  bool weight_on_input = false;
  bool is_strided = false;      // expert e lives on rank e % R instead of linearly
  bool is_interleaved = false;  // both calls are prepared, then finalized in the reverse order
  int microbatches = 1;         // every call is cut into as many, however few tokens there are
  bool has_wide_ids = false;    // ids are i64
};

// The input of one rank to a call.
struct LayerInput {
  Tensor hidden;        // [T, H]
  Tensor topk_ids;      // i32 [T, K]
  Tensor topk_weights;  // f32 [T, K]
  Tensor logits;        // f32 [T, E], of which a router makes ids and weights; only when routed
};

// One element of a selection's result, as it is summed.
struct LayerTerm {
  float y = 0;  // what the expert computed
  float weight = 1;
  int64_t expert = 0;
  int rank = 0;
};
// Computes one element of the output.  `terms` are a token's selections in the order of slots,
// without masked ones.  Values are rounded to dtype where the backend rounds.
using LayerSum = float (*)(std::span<const LayerTerm> terms,
                           int64_t topk,
                           DType dtype,
                           const Topology& topology);

// Which rows share a scale where a scale is computed over all rows of a tensor.
enum class LayerScope : uint8_t {
  kWhole,     // all rows on one rank; in the batched format those of one expert
  kGathered,  // every rank has the rows of all tokens, and computes those of its experts
  kReceived,  // every rank has the rows that its experts need
  kInFlight,  // batched; fp8 blocks are quantized as low_latency casts them, others as in kWhole
};

class LayerProblem {
 public:
  static constexpr int64_t kMaxTokens = 8;  // per rank and call

  // With `routed`, a router chooses the ids by logits, and none is masked.
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
  // A router that takes the top-k of the softmax; it chose the ids of inputs when routed.
  std::shared_ptr<const Router> make_router(Device device) const;
  // The description of a rank's experts, and these experts with their share of the weights.
  ExpertsDesc desc(int rank, ActivationFormat format) const;
  std::unique_ptr<Experts> make_experts(int rank,
                                        ActivationFormat format,
                                        const Stream& stream) const;

  // The outputs [T, H] that `rank` must have.
  Tensor expected(size_t call,
                  int rank,
                  ActivationFormat format,
                  LayerScope scope,
                  LayerSum sum,
                  const Topology& topology);
  // The results of all experts for every selection, computed on one rank: [N, H] in the order of
  // rank, token and slot.
  const Tensor& selections(size_t call, ActivationFormat format, LayerScope scope);

 private:
  struct Selection;
  std::vector<Selection> all_selections(size_t call) const;
  ExpertWeights weights_of(const std::vector<int64_t>& experts) const;
  std::string_view single_rank_implementation() const;
  ModularKernel& single_rank(ActivationFormat format, LayerScope scope);
  bool casts_blocks() const;
  // Whether a scale is computed over all rows at hand, so that it matters which rank has which
  // rows.
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
  ExpertsDesc desc_;  // in the standard format, with all experts on one rank
  ExpertWeights weights_;
  ExpertPlacement placement_;
  std::vector<std::vector<LayerInput>> inputs_;  // [call][rank]
  std::map<std::pair<ActivationFormat, LayerScope>, ModularKernel> single_rank_;
  std::map<std::tuple<size_t, ActivationFormat, LayerScope>, Tensor> selections_;
};

}  // namespace moebius::testing
