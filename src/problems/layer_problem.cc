// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/layer_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "layer/rows/token_slices.h"
#include "moebius/quantize.h"
#include "problems/dispatch_problem.h"

namespace moebius::testing {

namespace {

constexpr int64_t kIntermediate = 64;
constexpr int64_t kTokens[] = {5, 0, 3, 1, 7, 2, 0, 4};  // of up to 8 ranks
constexpr uint64_t kSeed = 11;

DispatchProblem routing(const LayerScheme& scheme,
                        const LayerScenario& scenario,
                        int num_ranks,
                        size_t call) {
  DispatchProblem p;
  p.num_ranks = num_ranks;
  p.num_experts = std::max(5, num_ranks + 2);  // several ranks never hold equally many
  p.topk = scenario.topk;
  p.hidden = scheme.hidden;
  p.strided = scenario.is_strided;
  p.seed = kSeed + call;
  const LayerCall kind = scenario.calls[call];
  p.skew = kind == LayerCall::kOneRank     ? Skew::kOneRank
           : kind == LayerCall::kOneExpert ? Skew::kOneExpert
           : kind == LayerCall::kAllMasked ? Skew::kAllMasked
                                           : Skew::kUniform;
  for (int r = 0; r < num_ranks; ++r) {
    p.tokens.push_back(kind == LayerCall::kNoTokens ? 0 : kTokens[r]);
  }
  return p;
}

// Logits with which a router chooses the given ids in their order, and other ids in place of masked
// ones.
Tensor logits_for(const Tensor& ids, int64_t num_experts, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t topk = ids.dim(1);
  const Tensor logits = Tensor::empty({ids.dim(0), num_experts}, DType::kF32);
  for (int64_t i = 0; i < logits.numel(); ++i) {
    logits.data<float>()[i] = std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
  }
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (const int32_t id = ids.data<int32_t>()[i]; id >= 0) {
      logits.data<float>()[i / topk * num_experts + id] +=
          3.0f - 0.1f * static_cast<float>(i % topk);
    }
  }
  return logits;
}

// The rows `experts` of a tensor that has a row per expert; other tensors are returned as they are.
Tensor pick(const Tensor& tensor, const std::vector<int64_t>& experts, int64_t num_experts) {
  if (!tensor.defined() || tensor.numel() == 1) {
    return tensor;
  }
  expect_eq(tensor.dim(0), num_experts, "rows of a tensor per expert");
  const Tensor picked = tensor.slice(0, static_cast<int64_t>(experts.size())).clone();
  for (size_t l = 0; l < experts.size(); ++l) {
    const Tensor from = tensor.slice(experts[l], experts[l] + 1);
    std::memcpy(picked.slice(static_cast<int64_t>(l), static_cast<int64_t>(l) + 1).raw(),
                from.raw(), static_cast<size_t>(from.nbytes()));
  }
  return picked;
}

// Prepares batched rows on one rank and quantizes them as LowLatencyCast::kFp8 and kFp8Ue8m0 do: it
// multiplies by the reciprocal of the scale, where quantize() divides.
class CastingNoEp final : public PrepareFinalize {
 public:
  CastingNoEp(int64_t max_rows, int64_t num_experts)
      : PrepareFinalize({.name = "no_ep_batched, cast",
                         .activation_format = ActivationFormat::kBatched,
                         .max_tokens_per_rank = max_rows}),
        base_(make_no_ep_batched(max_rows, num_experts)) {}

  Support accepts(WeightAndReduceKind kind) const override { return base_->accepts(kind); }
  Support accepts(const QuantConfig& quant, bool defer) const override {
    return base_->accepts(quant, defer);
  }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    PrepareInput unquantized = input;
    unquantized.defer_input_quant = true;
    PrepareResult result = base_->prepare(unquantized, context);
    const Tensor rows = result.x;
    constexpr int64_t kGroup = 128;
    result.x = Tensor::zeros(rows.shape(), DType::kF8E4M3);
    result.x_scale = Tensor::zeros({rows.dim(0), rows.dim(1), rows.dim(2) / kGroup}, DType::kF32);
    for (int64_t e = 0; e < rows.dim(0); ++e) {
      const int64_t first = e * rows.dim(1) * rows.dim(2);
      const int64_t used = result.expert_num_tokens.data<int32_t>()[e] * rows.dim(2);
      for (int64_t begin = first; begin < first + used; begin += kGroup) {
        float amax = 1e-4f;
        for (int64_t i = begin; i < begin + kGroup; ++i) {
          amax = std::max(amax, std::fabs(get_float(rows, i)));
        }
        float scale = amax * (1.0f / 448.0f);
        float inverse = 448.0f / amax;
        if (input.quant->a1.power_of_two_scale) {
          scale = std::exp2(std::ceil(std::log2(scale)));
          inverse = 1.0f / scale;
        }
        set_float(result.x_scale, begin / kGroup, scale);
        for (int64_t i = begin; i < begin + kGroup; ++i) {
          set_float(result.x, i, get_float(rows, i) * inverse);
        }
      }
    }
    return result;
  }
  void finalize(const FinalizeInput& input, const CallContext& context) override {
    base_->finalize(input, context);
  }

 private:
  std::unique_ptr<PrepareFinalize> base_;
};

}  // namespace

std::string_view name(LayerCall call) {
  constexpr std::string_view kNames[] = {"uneven tokens",     "all to one rank",
                                         "all to one expert", "all masked",
                                         "no tokens",         "the first call again"};
  return kNames[static_cast<size_t>(call)];
}

LayerProblem::LayerProblem(const LayerScheme& scheme,
                           const LayerExperts& experts,
                           const LayerScenario& scenario,
                           int num_ranks,
                           bool routed)
    : scheme_(scheme),
      experts_(experts),
      scenario_(scenario),
      placement_(routing(scheme, scenario, num_ranks, 0).placement()) {
  const bool is_f64 = experts.precision == Precision::kF64;
  desc_.num_experts = desc_.num_local_experts = placement_.num_experts();
  desc_.topk = scenario.topk;
  desc_.hidden = scheme.hidden;
  desc_.intermediate = kIntermediate;
  desc_.in_dtype = is_f64 ? DType::kF32 : scheme.expert_case.dtype;
  desc_.activation = scheme.expert_case.activation;
  desc_.precision = experts.precision;
  weights_ = ExpertProblemMaker(kSeed).make_weights(desc_, scheme.expert_case);

  const auto router = make_router(Device::cpu());
  const Stream stream = Stream::cpu(1);
  for (size_t call = 0; call < scenario.calls.size(); ++call) {
    if (scenario.calls[call] == LayerCall::kRepeat) {
      inputs_.push_back(inputs_.front());
      continue;
    }
    inputs_.emplace_back();
    for (const RankInput& from : make_inputs(routing(scheme, scenario, num_ranks, call))) {
      LayerInput in{convert(from.x, desc_.in_dtype), from.ids, from.weights, {}};
      if (routed) {
        in.logits = logits_for(from.ids, desc_.num_experts, kSeed + inputs_.back().size());
        router->select(in.logits, in.topk_ids, in.topk_weights, stream);
      }
      inputs_.back().push_back(in);
    }
  }
}

ExpertsDesc LayerProblem::desc(int rank, ActivationFormat format) const {
  ExpertsDesc d = desc_;
  d.format = format;
  d.num_local_experts = placement_.num_local(rank);
  return d;
}

ExpertWeights LayerProblem::weights_of(const std::vector<int64_t>& experts) const {
  const auto own = [&](const Tensor& tensor) { return pick(tensor, experts, desc_.num_experts); };
  ExpertWeights weights{own(weights_.w1), own(weights_.w2), weights_.quant, {}};
  for (QuantDesc* d :
       {&weights.quant.a1, &weights.quant.a2, &weights.quant.w1, &weights.quant.w2}) {
    for (Tensor* tensor : {&d->scale, &d->alpha_or_gscale, &d->zero_point, &d->bias}) {
      *tensor = own(*tensor);
    }
  }
  return weights;
}

std::shared_ptr<const Router> LayerProblem::make_router(Device device) const {
  RouterConfig config;
  config.num_experts = desc_.num_experts;
  config.topk = desc_.topk;
  config.device = device;
  return std::make_shared<const Router>(config, RouterWeights{});
}

std::unique_ptr<Experts> LayerProblem::make_experts(int rank,
                                                    ActivationFormat format,
                                                    const Stream& stream) const {
  std::vector<int64_t> local;
  for (int64_t e = 0; e < desc_.num_experts; ++e) {
    if (placement_.rank_of(e) == rank) {
      local.push_back(e);
    }
  }
  return moebius::make_experts(desc(rank, format), weights_of(local), stream,
                               experts_.implementation);
}

std::string_view LayerProblem::single_rank_implementation() const {
  return experts_.device == DeviceType::kCpu ? experts_.implementation : "cpu_portable";
}

// Every selection is a token of its own, with top-1 routing and all experts on this rank.
ModularKernel& LayerProblem::single_rank(ActivationFormat format, LayerScope scope) {
  const auto found = single_rank_.find({format, scope});
  if (found != single_rank_.end()) {
    return found->second;
  }
  ExpertsDesc d = desc_;
  d.format = format;
  d.topk = 1;
  const auto max_rows = static_cast<int64_t>(inputs_[0].size()) * kMaxTokens * desc_.topk;
  std::unique_ptr<PrepareFinalize> prepare_finalize;
  if (format == ActivationFormat::kStandard) {
    prepare_finalize = make_no_ep();
  } else if (scope == LayerScope::kInFlight) {
    prepare_finalize = std::make_unique<CastingNoEp>(max_rows, d.num_experts);
  } else {
    prepare_finalize = make_no_ep_batched(max_rows, d.num_experts);
  }
  auto experts = moebius::make_experts(d, weights_, Stream::cpu(1), single_rank_implementation());
  return single_rank_.try_emplace({format, scope}, std::move(prepare_finalize), std::move(experts))
      .first->second;
}

bool LayerProblem::casts_blocks() const {
  const auto spec = activation_spec(weights_.quant.a1);
  return spec && spec->format == QuantFormat::kFp8 && spec->group == GroupShape{1, 128} &&
         experts_.precision == Precision::kModel;
}

bool LayerProblem::scales_over_rows() const {
  const auto spec = activation_spec(weights_.quant.a1);
  if (!spec || experts_.precision == Precision::kF64) {
    return false;
  }
  return spec->group.is_per_tensor() && !weights_.quant.a1.scale.defined();
}

struct LayerProblem::Selection {
  const LayerInput* input;
  int64_t token;  // index among the tokens of all ranks
  int64_t row;    // index in `input`
  int32_t expert;
  float weight;
};

std::vector<LayerProblem::Selection> LayerProblem::all_selections(size_t call) const {
  std::vector<Selection> all;
  int64_t token = 0;
  for (const LayerInput& in : inputs_[call]) {
    for (int64_t t = 0; t < in.hidden.dim(0); ++t, ++token) {
      for (int64_t i = t * desc_.topk; i < (t + 1) * desc_.topk; ++i) {
        all.push_back(
            {&in, token, t, in.topk_ids.data<int32_t>()[i], in.topk_weights.data<float>()[i]});
      }
    }
  }
  return all;
}

// Sets y[i] to what the expert of selection i makes of it, for those i in `rows` whose expert lives
// on only_rank, or on any rank where that is -1.
void LayerProblem::compute(const std::vector<Selection>& all,
                           const std::vector<int64_t>& rows,
                           int only_rank,
                           ActivationFormat format,
                           LayerScope scope,
                           const Tensor& y) {
  const auto n = static_cast<int64_t>(rows.size());
  KernelInput input;
  input.hidden = Tensor::empty({n, desc_.hidden}, desc_.in_dtype);
  input.topk_ids = Tensor::empty({n, 1}, DType::kI32);
  input.topk_weights = Tensor::empty({n, 1}, DType::kF32);
  input.apply_router_weight_on_input = scenario_.weight_on_input;
  for (int64_t i = 0; i < n; ++i) {
    const Selection& s = all[static_cast<size_t>(rows[static_cast<size_t>(i)])];
    const Tensor from = s.input->hidden[s.row];
    std::memcpy(input.hidden[i].raw(), from.raw(), static_cast<size_t>(from.nbytes()));
    const bool is_own =
        s.expert >= 0 && (only_rank < 0 || placement_.rank_of(s.expert) == only_rank);
    input.topk_ids.data<int32_t>()[i] = is_own ? s.expert : -1;
    input.topk_weights.data<float>()[i] = scenario_.weight_on_input ? s.weight : 1.0f;
  }
  const Tensor output = Tensor::empty({n, desc_.hidden}, desc_.in_dtype);
  WorkspacePool workspaces;
  single_rank(format, scope).forward(input, output, {}, {Stream::cpu(1), &workspaces, 0, nullptr});
  for (int64_t i = 0; i < n; ++i) {
    if (input.topk_ids.data<int32_t>()[i] >= 0) {
      const Tensor to = y[rows[static_cast<size_t>(i)]];
      std::memcpy(to.raw(), output[i].raw(), static_cast<size_t>(to.nbytes()));
    }
  }
}

const Tensor& LayerProblem::selections(size_t call, ActivationFormat format, LayerScope scope) {
  if (scope == LayerScope::kInFlight ? !casts_blocks() : !scales_over_rows()) {
    scope = LayerScope::kWhole;
  }
  const auto [found, is_new] = selections_.try_emplace({call, format, scope});
  Tensor& y = found->second;
  if (!is_new) {
    return y;
  }
  const std::vector<Selection> all = all_selections(call);
  y = Tensor::zeros({static_cast<int64_t>(all.size()), desc_.hidden}, desc_.in_dtype);
  for (int part = 0; part < scenario_.microbatches; ++part) {
    std::vector<int64_t> rows;  // the selections of this micro-batch
    for (size_t i = 0; i < all.size(); ++i) {
      const TokenSlice own = token_slice(all[i].input->hidden.dim(0), scenario_.microbatches, part);
      if (own.begin <= all[i].row && all[i].row < own.end) {
        rows.push_back(static_cast<int64_t>(i));
      }
    }
    compute_microbatch(all, rows, format, scope, y);
  }
  return y;
}

void LayerProblem::compute_microbatch(const std::vector<Selection>& all,
                                      const std::vector<int64_t>& rows,
                                      ActivationFormat format,
                                      LayerScope scope,
                                      const Tensor& y) {
  if (scope == LayerScope::kWhole || scope == LayerScope::kInFlight) {
    compute(all, rows, -1, format, scope, y);
    return;
  }
  for (int rank = 0; rank < static_cast<int>(inputs_[0].size()); ++rank) {
    std::vector<bool> has_token(all.size(), scope == LayerScope::kGathered);
    for (const Selection& s : all) {
      if (s.expert >= 0 && placement_.rank_of(s.expert) == rank) {
        has_token[static_cast<size_t>(s.token)] = true;
      }
    }
    std::vector<int64_t> here;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(here), [&](int64_t i) {
      return has_token[static_cast<size_t>(all[static_cast<size_t>(i)].token)];
    });
    compute(all, here, rank, format, LayerScope::kWhole, y);
  }
}

Tensor LayerProblem::expected(size_t call,
                              int rank,
                              ActivationFormat format,
                              LayerScope scope,
                              LayerSum sum,
                              const Topology& topology) {
  const Tensor& y = selections(call, format, scope);
  const LayerInput& in = input(call, rank);
  int64_t first = 0;  // index of this rank's first selection
  for (int r = 0; r < rank; ++r) {
    first += input(call, r).topk_ids.numel();
  }
  const Tensor output = Tensor::empty(in.hidden.shape(), desc_.in_dtype);
  std::vector<LayerTerm> terms;
  for (int64_t i = 0; i < output.numel(); ++i) {
    const int64_t t = i / desc_.hidden;
    const int64_t h = i % desc_.hidden;
    terms.clear();
    for (int64_t s = t * desc_.topk; s < (t + 1) * desc_.topk; ++s) {
      if (const int32_t expert = in.topk_ids.data<int32_t>()[s]; expert >= 0) {
        terms.push_back({get_float(y, (first + s) * desc_.hidden + h),
                         scenario_.weight_on_input ? 1.0f : in.topk_weights.data<float>()[s],
                         expert, placement_.rank_of(expert)});
      }
    }
    set_float(output, i, sum(terms, desc_.topk, desc_.in_dtype, topology));
  }
  return output;
}

}  // namespace moebius::testing
